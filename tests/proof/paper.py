"""A network on paper: it is asked for one thing, does another, and counts what it does as a backend would. What the
judge says of it costs no kernel, no packet and no time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lossbench.net.conservation import Between
from lossbench.net.counters import (
    LATE_MS,
    TOTAL,
    UNMATCHED,
    Counters,
    Held,
    LinkCounts,
    Position,
    ReadBack,
    Reading,
    RuleCounters,
    Sockets,
)
from lossbench.net.impair import registry
from lossbench.net.impair.ebpf import memory
from lossbench.net.impair.ebpf.backend import _Placed
from lossbench.net.network import not_in_force
from lossbench.proof.evidence import FlowSeen, Seen
from lossbench.proof.judge import judge
from lossbench.proof.probe.exchange import DELAY_SAMPLES
from lossbench.proof.probe.flows import Flow, plan, taken_by
from lossbench.proof.probe.foils import foils
from lossbench.proof.probe.probing import _counts
from lossbench.proof.prove import prove
from lossbench.proof.verdict import Verdict
from lossbench.proof.watched import Carried, Change, Watched
from lossbench.spec.delay import Delay
from lossbench.spec.experiment import Experiment
from lossbench.spec.lossmodel import Bits, advanced, first_state, predict
from lossbench.spec.placement import Hook, Rule, Rules, rules_ever, rules_in_force

SEEDED = ("ebpf", "edt", "relay")
PROBES, PACKETS, SAMPLES, SECONDS = 3000, 2000, DELAY_SAMPLES, 4.0
SEED = 3


@dataclass
class Paper:
    """`really`: what it does, with `after_probes` only in the run; `larger` packets than the MTU pass its hooks;
    `silent`: the workload sends nothing; `told_s`: when a network that keeps windows was told when the run began."""

    asked: Experiment
    really: Experiment
    backend: str
    larger: int = 0
    silent: bool = False
    told_s: float = 0.0
    after_probes: bool = False
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(SEED))
    done: Counter[tuple[Hook, Rule]] = field(default_factory=Counter)  # packets that each rule has decided on

    def verdict(self) -> Verdict:
        probed = self.asked if self.after_probes else self.really
        rules, real = (rules_in_force(one, seed=SEED) for one in (self.asked, probed))
        flows, remarks = plan(rules, self.asked.topology)
        foiled, untold = foils(rules, flows, self.asked.topology)
        flows += foiled
        before = self._reading(rules)
        after, seen = self._through(flows, PROBES, rules, real, before)
        proof = prove(
            rules=rules,
            seen=Seen(
                flows=seen,
                counts=_counts(rules, seen, before, after),
                between=Between(before, after),
                begins_good=registry.find(self.backend).begins_good,
                not_judged=untold,
            ),
            remarks=remarks,
        )
        return judge(experiment=self.asked, backend=self.backend, proof=proof, watched=self._run(flows))

    def _run(self, flows: list[Flow]) -> Watched:
        rules, real = (rules_ever(one, seed=SEED) for one in (self.asked, self.really))
        self.done.clear()  # counters and patterns are at their beginning again
        more = [flow for flow in plan(rules, self.asked.topology)[0] if flow not in flows]
        before = self._reading(rules)
        after, _ = self._through([*flows, *more], 0 if self.silent else PACKETS, rules, real, before)
        if self.larger:
            hook, here = next(iter(after.hooks.items()))
            label = next(iter(here))
            after.hooks[hook][label] = replace(here[label], super_packets=self.larger)
        return Watched(
            before=before,
            after=after,
            rules={hook: {rule.label: rule for rule in here} for hook, here in rules.items()},
            carried=self._carried(),
            held=self._held(after, rules, real) if self.backend == "relay" else {},
            changes=self._changes(),
            lapses=self._windows_read_back(),
            duration_s=SECONDS,
            last_step=100,
        )

    # --- packets -------------------------------------------------------------------------------------------------

    def _reading(self, rules: Rules) -> Reading:
        hosts = self.asked.topology.all_hosts()
        hooks = {
            hook: self._labelled(here, {rule: self._nothing(rule) for rule in here}) for hook, here in rules.items()
        }
        return Reading(links={host.rank: LinkCounts(sockets=Sockets()) for host in hosts}, hooks=hooks)

    def _nothing(self, rule: Rule) -> RuleCounters:
        chain = rule.profile.chain()
        state = first_state(chain, seed=rule.seed) if chain is not None else 0
        start = Position(generator=rule.seed, state=state, packets=0) if self.backend in SEEDED else None
        return RuleCounters(position=start, damage_counted=self.backend != "netem")

    def _labelled(self, here: tuple[Rule, ...], counts: dict[Rule, RuleCounters], rest: int = 0) -> Counters:
        """As the backend tells rules apart: cbpf only one that takes all."""
        if self.backend != "cbpf":
            return {**{rule.label: count for rule, count in counts.items()}, UNMATCHED: RuleCounters(seen=rest)}
        label = here[0].label if len(here) == 1 and here[0].takes_all() else TOTAL
        seen, dropped = (sum(getattr(one, name) for one in counts.values()) for name in ("seen", "dropped"))
        return {label: RuleCounters(seen=rest + seen, dropped=dropped)}

    def _through(
        self, flows: list[Flow], each: int, rules: Rules, real: Rules, before: Reading
    ) -> tuple[Reading, list[FlowSeen]]:
        """Every flow's packets, through what is really there at each hook."""
        counted = {hook: {rule: self._nothing(rule) for rule in here} for hook, here in rules.items()}
        rest, entered, left = Counter[Hook](), Counter[int](), Counter[int]()
        out = []
        for flow in flows:
            count = flow.count(each)
            up, down = flow.hooks()
            missing, here = np.zeros(count, dtype=np.bool_), np.ones(count, dtype=np.bool_)
            alive, copies = count, 0
            entered[up.rank] += count
            for hook in (up, down):
                rule = taken_by(real.get(hook, ()), flow)
                lost = np.zeros(count, dtype=np.bool_)
                lost[here] = self._lost(hook, rule, alive)
                met, dropped = alive + copies, int(lost.sum())
                profile = rule.profile if rule is not None else None
                double = int(self.random.binomial(alive - dropped, profile.duplicate_percent / 100)) if profile else 0
                broken = self.random.random(count) < (profile.corrupt_percent / 100 if profile else 0)
                here &= ~lost
                broken &= here & ~missing
                own = next((one for one in counted.get(hook, ()) if rule is not None and one.entry == rule.entry), None)
                if own is None:
                    rest[hook] += met
                else:
                    counted[hook][own] = self._more(counted[hook][own], met, dropped, double, int(broken.sum()))
                missing |= lost | broken
                alive, copies = alive - dropped, copies + double
            left[down.rank] += alive + copies
            asked = tuple((hook, taken_by(rules.get(hook, ()), flow)) for hook in (up, down))
            out.append(
                FlowSeen(
                    name=f"{flow.source.name} to {flow.destination.name}",
                    uplink=asked[0],
                    downlink=asked[1],
                    missing=missing,
                    delays_ms=self._delays(real, flow) if self.asked.impair[0].profile.delay else (),
                )
            )
        hooks = {hook: self._labelled(here, counted[hook], rest[hook]) for hook, here in rules.items()}
        links = {
            rank: LinkCounts(
                entered=entered[rank], entered_bytes=100 * entered[rank], left=left[rank], sockets=Sockets()
            )
            for rank in before.links
        }
        return Reading(links=links, hooks=hooks), out

    def _more(self, count: RuleCounters, met: int, dropped: int, double: int, broken: int) -> RuleCounters:
        at = count.position
        position = at and replace(at, packets=at.packets + met, generator=advanced(at.generator, met))
        return replace(
            count,
            seen=count.seen + met,
            dropped=count.dropped + dropped,
            duplicated=count.duplicated + double,
            corrupted=count.corrupted + (broken if count.damage_counted else 0),
            damageable=count.damageable + met - dropped,
            position=position,
        )

    def _lost(self, hook: Hook, rule: Rule | None, count: int) -> Bits:
        """The next of what its pattern loses; of backends without seeds, of some pattern."""
        chain = rule.profile.chain() if rule is not None else None
        if rule is None or chain is None:
            return np.zeros(count, dtype=np.bool_)
        first, seed = self.done[hook, rule], rule.seed if self.backend in SEEDED else rule.seed + 1
        self.done[hook, rule] += count
        lost: Bits = predict(chain, seed=seed, count=first + count)[first:]
        return lost

    # --- time ----------------------------------------------------------------------------------------------------

    def _delays(self, real: Rules, flow: Flow) -> tuple[float, ...]:
        total = np.full(SAMPLES, 0.2)
        for hook in flow.hooks():
            rule = taken_by(real.get(hook, ()), flow)
            delay = rule.profile.delay if rule is not None else None
            if rule is None or delay is None:
                continue
            waits = self._waits(delay, SAMPLES)
            share = rule.profile.reorder.share() if rule.profile.reorder is not None else 0.0
            total += np.where(self.random.random(SAMPLES) < share, 0.0, waits)
        return tuple(float(one) for one in total)

    def _waits(self, delay: Delay, count: int) -> Any:
        return delay.mean_ms + delay.jitter_ms * self.random.uniform(-1, 1, count)

    def _held(self, after: Reading, rules: Rules, real: Rules) -> dict[Hook, dict[str, Held]]:
        """As a wire says it, which knows what it was told and not what was asked: it is never late."""
        out: dict[Hook, dict[str, Held]] = {}
        for hook, here in rules.items():
            for asked, does in zip(here, real.get(hook, ()), strict=False):
                if asked.profile.delay is None or does.profile.delay is None:
                    continue
                packets = after.hooks[hook][asked.label].seen - after.hooks[hook][asked.label].dropped
                share = does.profile.reorder.share() if does.profile.reorder is not None else 0.0
                overtook = int(self.random.binomial(packets, share))
                waits = self._waits(does.profile.delay, packets - overtook) / 1000
                out.setdefault(hook, {})[asked.label] = Held(
                    packets=packets,
                    overtook=overtook,
                    late=[packets] + [0] * len(LATE_MS),
                    waited=len(waits),
                    stayed_s=float(waits.sum()),
                    spread_s2=float((waits**2).sum()),
                )
        return out

    def _carried(self) -> list[Carried]:
        rate = self.really.topology.uplink_mbit() or 0.0
        return [
            Carried(from_s=at, to_s=at, up={0: round(rate * 1e6 / 8 * at)}, down={1: round(rate * 1e6 / 8 * at)})
            for at in (0.0, 2.0, SECONDS)
        ]

    def _windows_read_back(self) -> list[str]:
        """Of a network that keeps them: what the backend says of the memory that stands there."""
        if not registry.find(self.backend).keeps_time:
            return []
        asked, does = (rules_ever(one, seed=SEED, kept=True) for one in (self.asked, self.really))
        found: dict[Hook, list[ReadBack]] = {}
        for hook, here in asked.items():
            placed = _Placed(slots={rule: slot for slot, rule in enumerate(here, start=1)}, maps={})
            placed.began_ns = 10**9
            windows = b"".join(memory.window_memory(rule, placed.began_ns) for rule in (None, *does.get(hook, ())))
            for rule, slot in placed.slots.items():
                equal = rule.window is None or placed.is_as_asked(slot, memory.rule_memory(rule), windows, b"")
                found.setdefault(hook, []).append(ReadBack(rule=rule.label, attached=True, equal=equal, mean_loss=None))
        return not_in_force(found)

    def _changes(self) -> list[Change]:
        """When entries came and went: as the other experiment has it. A network that keeps them is told when the run
        began, and says no more than that (runs/schedule.py)."""
        keeps = registry.find(self.backend).keeps_time
        out = []
        for number, (asked, does) in enumerate(zip(self.asked.impair, self.really.impair, strict=True)):
            ends: tuple[tuple[bool, Any, Any, Any], ...] = (
                (True, "s", asked.from_s, does.from_s),
                (False, "s", asked.to_s, does.to_s),
                (True, "step", asked.from_step, does.from_step),
                (False, "step", asked.to_step, does.to_step),
            )
            out += [
                Change(entry=number, came=came, unit=unit, asked=wanted, real=max(wanted, self.told_s), kept=True)
                if keeps and unit == "s"
                else Change(entry=number, came=came, unit=unit, asked=wanted, real=real)
                for came, unit, wanted, real in ends
                if wanted is not None
            ]
        return out
