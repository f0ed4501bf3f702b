"""What stands on NICs: found, looked at, confirmed, given back."""

from __future__ import annotations

import json
from typing import Any

from pyroute2 import IPRoute

from lossbench.errors import RunError, UsageError
from lossbench.files import Lock
from lossbench.net import journal
from lossbench.net.counters import UNMATCHED
from lossbench.net.host import namespaces
from lossbench.net.host.place import Here
from lossbench.net.journal import Journal, Removed
from lossbench.net.nic import snapshot, state, takedown, watchdog
from lossbench.net.nic.facts import Facts, Ssh, connections, printable
from lossbench.net.nic.request import RULES, Request
from lossbench.net.nic.state import ATTACHED, STANDING, UNCONFIRMED, State
from lossbench.net.nic.way.clock import Clock
from lossbench.net.tc import kinds
from lossbench.net.tc.hook import Side
from lossbench.net.tc.look import Look
from lossbench.net.tc.rtnl import Reader

MOST_NAME = 16  # an interface's name with its end
_COUNTS = ("taken", "protected", "other", "seen", "dropped", "super_packets", "lost_in_detour", "waiting")
_NOTHING: dict[str, Any] = dict.fromkeys(_COUNTS, 0)


def standing(*, everywhere: bool = False) -> list[tuple[Journal, State]]:
    """In this network namespace; or all of them."""
    found = [(book, state.read(book)) for book in journal.networks() if not takedown.revoked(book)]
    here = namespaces.current()
    return [(book, one) for book, one in found if one is not None and (everywhere or one.netns == here)]


def find(interface: str) -> tuple[Journal, State]:
    """By its name, also by the one that it was given since."""
    with IPRoute() as ip:
        index = next(iter(ip.link_lookup(ifname=interface)), None) if 0 < len(interface) < MOST_NAME else None
    for book, one in standing():
        if one.interface == interface or one.index == index:
            return book, one
    raise UsageError(
        f"nothing of ours stands on {printable(interface)}", next_step="lossbench nic show lists what does"
    )


def confirm(interface: str, ssh: Ssh | None, *, at_console: bool) -> State:
    """Only by a connection that was made since: one that came before proves nothing. Who sits at the machine itself can
    always take it back, and needs no proof."""
    book, _ = find(interface)
    late = RunError(f"{interface}: too late, it is being taken back", next_step="apply it again, --confirm-within 60s")
    with book.taken():
        found = state.read(book)
        if found is None or takedown.revoked(book):
            raise late
        if found.phase != UNCONFIRMED:
            raise UsageError(f"{interface} waits for no confirmation")
        if state.now() >= found.until:
            raise late
        step = "open a new SSH connection and say it there: that is the proof"
        if ssh is None and not at_console:
            raise UsageError("no SSH connection and no terminal: this proves nothing", next_step=step)
        if ssh is not None and ssh.peer in found.ssh:
            raise UsageError("this connection is older than what it is to confirm", next_step=step)
        if ssh is not None and ssh.peer not in connections(ssh.server_port):  # an old tmux still names its own
            raise UsageError("the SSH connection that this session came by is no more", next_step=step)
        clock = Clock.opened(found.maps)
        if clock is None:
            raise RunError(f"{interface}: what was applied is gone already")
        watchdog.arm(book)  # those that are missing
        found = found.with_phase(STANDING, found.expires)
        found.save(book)
        clock.set(found.expires)
        clock.close()
        if takedown.revoked(book):  # while we held it: a watchdog's time was over before ours
            takedown.take_away_or_say(book)
            raise late
    return found


def revert(interface: str) -> list[str]:
    """Returns what is not as it was before, in words."""
    book, found = find(interface)
    try:
        before = json.loads((book.folder / "snapshot.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        before = None
    removed = ended(book, found)
    if removed.failed:
        raise RunError("; ".join(removed.failed), next_step="lossbench clean")
    after = snapshot.of(found.index)
    if after is None:
        return ["the interface itself is gone"]
    if before is None:
        return ["how it was before can't be read any more; what we added is gone"]
    return snapshot.differences(before, after)


def ended(book: Journal, found: State) -> Removed:
    """Taken away now, whoever holds it: an agent or a command that lives loses it as it would to a watchdog."""
    wait_s = 0.0 if found.phase == ATTACHED else journal.WAIT_S  # others hold the lock for moments
    lock = Lock.take(book.folder / "lock", wait_s=wait_s, make=False)
    try:
        if not book.folder.exists():
            raise UsageError(f"nothing of ours stands on '{found.interface}' any more")
        return takedown.take_away(book, holder_lives=lock is None)
    finally:
        if lock is not None:
            lock.release()


def describe(found: State) -> dict[str, Any]:
    """What the gates and rules have counted, and how long it stands."""
    kinds.install()
    rules = RULES.validate_python(found.asked["rules"])
    request = Request(interface=found.interface, rules=rules, rank=found.rank, for_s=0, seed=found.seed)
    out: dict[str, Any] = {
        "id": found.id,
        "interface": found.interface,
        "profile": found.profile,
        "backend": found.backend,
        "seed": found.seed,
        "phase": found.phase,
        "left_s": max(0.0, found.until - state.now()),
        "asked_loss": max((rule.profile.mean_loss() for here in rules.values() for rule in here), default=0.0),
        "watchdogs": sum(watchdog.alive(Journal(found.id), number) for number in watchdog.NUMBERS),
        "sides": {},
    }
    clock = Clock.opened(found.maps)
    if clock is None:  # they live as long as a gate does
        out["sides"] = {side: {**_NOTHING, "wrong": [f"{side}: the gate is gone"]} for side in found.sides}
        return out
    try:
        counted = clock.counted()
        for side in found.sides:
            out["sides"][side] = {**counted[side], **_counted(found, request, side)}
    finally:
        clock.close()
    return out


def passed_late(found: State) -> int:
    """Packets that the gates let pass since the deadline was over, all sides together."""
    clock = Clock.opened(found.maps)
    if clock is None:
        return 0
    try:
        return sum(numbers["expired"] for numbers in clock.counted().values())
    finally:
        clock.close()


def _counted(found: State, request: Request, side: Side) -> dict[str, Any]:
    facts = Facts(name=found.interface, index=found.index, mtu=0)
    reader = Reader(Here())
    with IPRoute() as handle:
        one = request.detour(side, network_id=found.id, facts=facts, backend=found.backend, handle=handle)
        try:
            one.attach(found.detours.get(side, {}))
            look = Look.now(reader)
            counters = one.counters(look)
            rules = [count for label, count in counters.items() if label != UNMATCHED]
            return {
                "seen": sum(count.seen for count in rules),
                "dropped": sum(count.dropped for count in rules),
                "super_packets": sum(count.super_packets for count in counters.values()),
                "lost_in_detour": sum(one.lost(look).values()),
                "waiting": sum(here.waiting for here in one.held(look, counters)),
                "wrong": one.wrong(look),
            }
        except (IndexError, OSError, KeyError):  # devices that somebody removed
            left = dict.fromkeys(_COUNTS[3:], 0)
            return {**left, "wrong": [f"{side}: our devices are gone"]}
        finally:
            one.close()
            reader.close()
