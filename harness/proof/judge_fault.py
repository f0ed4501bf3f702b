"""The fault column: proven before the run, met by the run's own packets, and no packet unaccounted for. Pure."""

from __future__ import annotations

from typing import Any

from lossbench.net import conservation, counters
from lossbench.net.conservation import Between, Met
from lossbench.net.counters import TOTAL
from lossbench.proof import significance, statistics
from lossbench.proof.evidence import Proof
from lossbench.proof.judge_roles import judge_absent, judge_roles
from lossbench.proof.judge_rules import judge_fragments, judge_rules
from lossbench.proof.judge_windows import judge_always, judge_windows
from lossbench.proof.pace import judge_kept, judge_rates
from lossbench.proof.verdict import Finding, Judgement, Status
from lossbench.proof.watched import Watched
from lossbench.spec.experiment import Experiment, Impair
from lossbench.spec.losses import TraceLoss
from lossbench.spec.placement import Hook, Rule
from lossbench.spec.profile import Profile

LATE_SHARE, LATE_MS = 0.05, 2.0  # of a delay, as in the proof
TAIL_SHARE, TAIL_MS = 0.25, 20.0  # that one packet in twenty may be late by
STALL_SHARE, STALL_MS = 1.0, 250.0  # that none may be: whoever sends less while a wire stands still has few late ones
AROUND = 0.01  # of the bytes on the data links that may go over the control links, declared or not
FREE_BYTES = 1e6  # there, of all programs together
# A torch rendezvous sends its store .79 kB and .007 a rank, from each rank to each (.96 kB at 24, 1.24 at 64), in
# packets of 93 bytes and 1.5 a rank in the mean (136 at 24, 190 at 64). That is free, and half as much again.
MEETING_BYTES, MEETING_PACKET = (1.2e3, 10.5), (140.0, 2.25)
SAID = 1.05  # times what programs say that they sent there themselves: headers and acknowledgements are counted too
PORTS_SHOWN = 6


def judge_fault(experiment: Experiment, proof: Proof | None, watched: Watched, backend: str = "") -> Judgement:
    if proof is None:
        return Judgement(findings=(Finding(status=Status.UNKNOWN, text="no probe was sent: nothing is proven"),))
    if experiment.backend == "simulated":
        return proof.judgement
    findings = list(proof.judgement.findings)
    findings += [Finding(status=Status.UNKNOWN, text=text) for text in dict.fromkeys((*watched.lapses, *watched.never))]
    if watched.after is None:
        findings.append(Finding(status=Status.UNKNOWN, text="the kernel's counters could not be read after the run"))
        return Judgement(findings=tuple(findings))
    between = Between(watched.before, watched.after)
    findings += judge_rules(watched, between)
    findings += judge_windows(experiment, watched) + judge_always(experiment, watched, between)
    findings += judge_presence(experiment, watched, between)
    findings += judge_around(experiment, watched, between)
    findings += _judge_later(experiment, watched, between, backend)
    findings += judge_fragments(watched, between)
    findings += _judge_conservation(watched, between)
    findings += judge_rates(experiment, watched.carried)
    findings += _judge_held(watched) + judge_kept(watched)
    findings += _judge_traffic(experiment, watched, between)
    return Judgement(findings=tuple(findings))


def met_by_workload(watched: Watched) -> Met:
    return conservation.met(Between(watched.before, watched.after)) if watched.after is not None else Met()


# --- presence: what was asked of packets met some
# ----------------------------------------------------------------------


def judge_presence(experiment: Experiment, watched: Watched, between: Between) -> list[Finding]:
    """A workload whose packets never met what was asked says nothing about it. "All hosts" is met where any of them
    sends; a host or pair that the experiment names must have been met itself."""
    if experiment.workload.is_silent() and all(one.is_silent() for one in experiment.beside):
        return []
    if not sum(link.entered + link.lost_entering + link.up.dropped for link in between.links.values()):
        text = "no packet of the workload passed the data links"
        if watched.problem:
            text += " before it failed"
        else:
            text += ": did it use the control link (MASTER_ADDR)?"
            text += " --set workload.silent=true, if it sends nothing by design"
        return [Finding(status=Status.UNKNOWN, text=text)]
    out = []
    for number, entry in enumerate(experiment.impair):
        rules = [(h, r) for h, here in watched.rules.items() for r in here.values() if r.entry == number]
        if not _asks(entry.profile):
            continue
        if not rules:
            out += _overruled(number, entry, watched)
            continue
        unmet = [(hook, rule) for hook, rule in rules if not _seen(between, hook, rule)]
        if len(unmet) == len(rules):
            out.append(f"{_in_short(entry)}; nothing there: no packet of the workload met it")
            continue
        out += [
            f"{_in_short(entry)} at {h.name}{f' ({r.pair})' if r.pair else ''}; nothing there"
            for h, r in unmet
            if r.named
        ]
    absent = judge_absent(experiment, watched, between) if experiment.beside else []
    return absent + [Finding(status=Status.UNKNOWN, text=text) for text in out]


def _overruled(number: int, entry: Impair, watched: Watched) -> list[str]:
    """In words, if it was time for an entry and no packet could meet it: the first match wins, later entries first."""
    name = f"impair.{number} ({entry.profile.name})"
    if any(text.startswith(name) for text in watched.never):
        return []
    text = f"{name}: later entries take every packet, wherever and whenever it was asked for; a packet meets one entry"
    return [f"{text}: write what shall come together into one profile"]


def went_around(experiment: Experiment, watched: Watched, between: Between) -> bool:
    """Did more than was declared, and than one percent, go over links that no fault is on? What ranks need to meet at
    their store is free there and nowhere else; what a program says that it sent itself, to measure, is taken off the
    rest."""
    met, store = conservation.met(between), between.store_bytes
    declared = 1e6 * sum(one.declared_control_mb() for one in (experiment.workload, *experiment.beside))
    unsaid = max(0.0, met.control_bytes - store - SAID * sum(watched.control.values()))
    free = max(declared, FREE_BYTES, AROUND * met.bytes)
    return unsaid > free or unsaid + store > max(free, _meeting(list(experiment.stores().values()), between))


def _meeting(ranks: list[int], between: Between) -> float:
    """Bytes that are a rendezvous': who sends more than that, or in larger packets, sends data."""
    every = sum((MEETING_BYTES[0] + MEETING_BYTES[1] * one) * one**2 for one in ranks)
    return min(every, between.store_packets * (MEETING_PACKET[0] + MEETING_PACKET[1] * max(ranks)))


def judge_around(experiment: Experiment, watched: Watched, between: Between) -> list[Finding]:
    if not went_around(experiment, watched, between):
        return []
    met = conservation.met(between)
    text = f"{met.control_bytes / 1e6:.1f} MB went over the control links, around the fault"
    text += f" ({met.bytes / 1e6:.1f} MB over the data links); {_at_store(experiment, between)}"
    if watched.control:
        text += f"; its programs say that they sent {sum(watched.control.values()) / 1e6:.1f} MB of the rest themselves"
    if watched.around:
        text += f"; open there: {', '.join(watched.around[:PORTS_SHOWN])}"
    next_step = "bind to the data link, or declare it (workload.control_mb)"
    return [Finding(status=Status.UNKNOWN, text=f"{text}; {next_step}")]


def _at_store(experiment: Experiment, between: Between) -> str:
    where = ", ".join(f"{host.name} tcp {port}" for host, port in experiment.stores())
    if not between.after.store_told:
        return f"how much of that to and from the ranks' store ({where}) nobody could count here"
    size, packets = between.store_bytes, between.store_packets
    each = f", in packets of {size / packets:.0f} bytes" if packets else ""
    return f"{size / 1e6:.1f} MB of that to and from the ranks' store ({where}{each})"


def _judge_later(experiment: Experiment, watched: Watched, between: Between, backend: str) -> list[Finding]:
    """What began after the probes was proven by the run's own packets, or not at all."""
    out = []
    for number, entry in enumerate(experiment.impair):
        seen = any(
            _seen(between, h, r) for h, here in watched.rules.items() for r in here.values() if r.entry == number
        )
        if entry.active(elapsed_s=0.0, step=0) or not seen:
            continue
        profile = entry.profile
        predicted = profile.chain() is not None or isinstance(profile.loss, TraceLoss)
        if not predicted:
            out.append(f"impair.{number} ({profile.name}) began later: its loss was not probed and can't be predicted")
        if profile.delay is not None and backend in ("netem", "edt"):
            out.append(f"impair.{number} ({profile.name}) began later: its delay was never measured")
    return [Finding(status=Status.UNKNOWN, text=text) for text in out]


def _seen(between: Between, hook: Hook, rule: Rule) -> int:
    here = between.hooks.get(hook, {})
    if rule.label in here or TOTAL not in here:
        return here[rule.label].seen if rule.label in here else 0
    # Counted per port: that one packet met a rule shows only in that one was lost.
    return here[TOTAL].dropped


def _asks(profile: Profile) -> bool:
    return bool(
        profile.mean_loss()
        or profile.delay
        or profile.slot
        or profile.duplicate_percent
        or profile.corrupt_percent
        or profile.rate_mbit
    )


def _in_short(entry: Impair) -> str:
    profile = entry.profile
    return f"{100 * profile.mean_loss():.3g} % was asked of {profile.match.in_words()} (profile {profile.name})"


# --- conservation
# ------------------------------------------------------------------------------------------------------


def _judge_conservation(watched: Watched, between: Between) -> list[Finding]:
    texts = []
    for leak in conservation.leaks(between):
        when = watched.noticed.get(leak.place)
        text = leak.in_words() + (f" (first noticed after {when:.1f} s)" if when is not None else "")
        moved = f" ({watched.moving} packets still moved while the counters were read)" if watched.moving else ""
        texts.append(text + moved)
    lost = {**conservation.lost_elsewhere(between), **conservation.kept_from_programs(between)}
    for place, count in lost.items():
        texts.append(f"{count} packets were lost {place}: not by the fault that was asked for")
    if texts:
        return [Finding(status=Status.UNKNOWN, text=text) for text in texts]
    met = conservation.met(between)
    text = f"all {met.packets} packets are accounted for: {met.rule} lost by rules, {met.damaged} damaged"
    text += f", {met.queue} lost in queues under the rate that was asked"
    text += f", {met.for_nobody} for addresses that no host has" if met.for_nobody else ""
    if met.observed:
        text = f"{met.observed} of {met.packets} packets were lost between the machines: observed, not counted"
        text += f" (a switch that can be asked: [switch] counters); {met.rule} lost by rules, {met.damaged} damaged"
    return [Finding(status=Status.VALID, text=text)] if met.packets else []


def _judge_traffic(experiment: Experiment, watched: Watched, between: Between) -> list[Finding]:
    """The workload's own sequence numbers against the kernel's counters."""
    if between.copies:  # one that was sent arrives many times
        return []
    if experiment.beside:
        return judge_roles(experiment, watched, between)
    traffic = watched.traffic.get("", {})
    if not traffic or experiment.workload.torchrun > 1:  # several ranks speak for one host
        return []
    if len(traffic) < experiment.topology.hosts:
        text = f"only {len(traffic)} of {experiment.topology.hosts} ranks reported their traffic"
        return [Finding(status=Status.UNKNOWN, text=text)]
    findings = []
    for rank, record in sorted(traffic.items()):
        link, said = between.links[rank], sum(record["sent"])
        given = link.entered + link.lost_entering + link.up.dropped + link.up.waiting
        answered = link.sockets.answered if link.sockets is not None else 0
        if said > given or (said < given - answered and record.get("complete")):
            text = f"h{rank} says that it sent {said} datagrams, its link was given {given}"
            findings.append(Finding(status=Status.UNKNOWN, text=text))
    return [*findings, _judge_missing(traffic, between)]


def _judge_missing(traffic: dict[int, dict[str, Any]], between: Between) -> Finding:
    sent = sum(sum(record["sent"]) for record in traffic.values())
    received = sum(sum(record["received"]) for record in traffic.values())
    met, missing = conservation.met(between), sent - received
    sockets = [link.sockets for link in between.links.values() if link.sockets is not None]
    counted = met.rule + met.queue + met.elsewhere + met.observed + max(met.damaged, sum(s.damaged for s in sockets))
    counted += sum(s.unwanted for s in sockets) + sum(c.up.waiting + c.down.waiting for c in between.links.values())
    counted += met.for_nobody
    text = f"the workload misses {missing} of {sent} datagrams, kernel counters say {counted}"
    if all(record.get("complete") for record in traffic.values()):
        both = conservation.counted_twice(between) + sum(s.answered for s in sockets)  # or lost, and no datagram
        agrees = counted - both <= missing <= counted
    else:
        agrees = 0 <= missing <= counted
    return Finding(status=Status.VALID if agrees else Status.UNKNOWN, text=text)


# --- what is held back
# -------------------------------------------------------------------------------------------------


def _judge_held(watched: Watched) -> list[Finding]:
    """A wire in user space says itself how late it was with each rule's packets."""
    out: list[Finding] = []
    overtaking: list[tuple[str, float]] = []
    told = [(hook, label, held) for hook, here in watched.held.items() for label, held in here.items()]
    for hook, label, held in told:
        rule = watched.rules.get(hook, {}).get(label)
        if not held.packets or rule is None or rule.profile.delay is None:
            continue
        asked = rule.profile.delay.mean_ms
        for who, share, room_ms in (
            ("50% of", 0.5, LATE_SHARE * asked + LATE_MS),
            ("5% of", 0.05, TAIL_SHARE * asked + TAIL_MS),
            ("the latest of", 0.5 / held.packets, STALL_SHARE * asked + STALL_MS),
        ):
            late = held.late_ms(1 - share)
            if late > room_ms and room_ms < counters.LATE_MS[-1]:  # beyond that nobody counts
                about = f"about {min(late, counters.LATE_MS[-1]):.3g} ms late or more ({room_ms:g} allowed)"
                text = f"{hook.name}: {who} {held.packets} packets left {about}; {asked:g} ms were asked"
                out.append(Finding(status=Status.UNKNOWN, text=text))
                break
        wanted = rule.profile.reorder.share() if rule.profile.reorder is not None else 0.0
        if wanted:
            text = f"{hook.name}: {held.overtook} of {held.packets} packets overtook, asked {wanted:.1%}"
            overtaking.append((text, statistics.binomial_two_sided(held.overtook, held.packets, wanted)))
    return out + significance.failed(overtaking, of="overtaking in the run")
