"""What a run asks of any network: a star of namespaces, this machine's own interface, machines in a lab, or none at all
(simulate/no_network.py). Who builds on this need not know which."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from lossbench.net.conservation import Between, leaks
from lossbench.net.counters import HeldByRule, HookCounters, ReadBack, Reading
from lossbench.net.host.place import Place
from lossbench.net.tc.shaping import ClassState
from lossbench.spec.experiment import Experiment
from lossbench.spec.placement import Hook, Rules

SETTLE_S = 3.0  # queues empty within this, or are taken as they stand
SETTLE_STEP_S = 0.005
QUIET_S = 0.03  # before a run nothing may have moved for this long
LONGEST_DELAY_FACTOR = 5  # jitter is waited for this many deviations
Look = Any  # the network at one moment: read once, given back to the one that it came from


class Network(Protocol):
    """Built once, changed in place, removed once (by its journal). In the order of use."""

    experiment: Experiment
    genuine: bool
    """Packets cross it; False: loss is drawn by the workload itself, and there is nothing to look at."""
    begins_good: bool
    """Bursty channels begin in their good state."""
    rules: Rules
    """In force now."""
    keeps_time: bool
    """Rules hold their windows in time (Rule.window), compared where packets meet them; else whoever puts them in force
    has to be on time."""

    def build(self, *, before_making: Callable[[str, str], None]) -> None:
        """`before_making(kind, name)` is told of every thing before it exists, so that a journal can undo it."""

    def cut_to_mtu(self) -> None:
        """Senders cut to the MTU before the loss point, receivers merge behind it."""

    def links_as_json(self) -> dict[str, Any]: ...

    def shape(self) -> None:
        """Rates and classes of every link."""

    def expect(self, rules: Rules) -> None:
        """Every rule that the schedule will ever put in force; before the first `put`."""

    def put(self, rules: Rules) -> list[Hook]:
        """Put rules in force; only hooks whose rules differ are touched. Returns those."""

    def restart(self) -> None:
        """Counters at zero, seeded patterns at their first packet. Nothing is under way now."""

    def begin(self, at_s: float) -> None:
        """The run's clock began at this second of the monotonic one: windows count from there."""

    def place(self, host: str) -> Place: ...

    # --- reading ---------------------------------------------------------------------------------------------------

    def look(self) -> Look: ...

    def read(self, *, look: Look | None = None, sockets: bool = False) -> Reading:
        """Every counter, now. `sockets`: those inside the hosts too."""

    def settled(self, *, since: Reading | None = None) -> tuple[Reading, int]:
        """A reading between packets; and how many still moved if that did not come to pass in time."""

    def counters(self) -> HookCounters: ...

    def classes(self, look: Look | None = None) -> dict[str, list[ClassState]]: ...

    def read_back(self, look: Look | None = None) -> dict[Hook, list[ReadBack]]: ...

    def control_sockets(self) -> list[str]:
        """Open on the control links just now, in words."""

    def held(self) -> HeldByRule:
        """Of wires that hold packets back in user space."""

    def longest_wait_s(self) -> float:
        """How long a packet may be held back by what was asked."""

    # --- is it still as it was asked for? In words, empty if it is. --------------------------------------------------

    def listen(self) -> None:
        """From now on, to changes that others make."""

    def changes(self) -> list[str]: ...

    def not_in_force(self, look: Look | None = None) -> list[str]: ...

    def shaping_wrong(self, look: Look | None = None) -> list[str]: ...

    def mtu_wrong(self, look: Look) -> list[str]: ...

    def offloads_wrong(self) -> list[str]: ...

    def hosts_wrong(self, *, some: bool = False) -> list[str]:
        """What stands in a host's own stack that could lose packets, and that netlink does not tell of. `some`: the
        next few hosts in turn, so that a look stays cheap."""

    def links_wrong(self, look: Look) -> list[str]:
        """Ports that were there and are gone or down."""

    # --- the end ---------------------------------------------------------------------------------------------------

    def end_programs(self) -> None:
        """Whatever a workload left running in its hosts."""

    def close(self) -> None:
        """Handles only."""


def settled(
    network: Network, *, since: Reading | None = None, read: Callable[..., Reading] | None = None
) -> tuple[Reading, int]:
    """See Network.settled: once nothing is under way any more and, since an earlier reading, every packet is accounted
    for. `read`: in place of the network's own."""
    read = read or network.read
    limit = time.monotonic() + SETTLE_S + network.longest_wait_s()
    before = read()
    while True:
        time.sleep(SETTLE_STEP_S if since is not None else QUIET_S)
        now = read(sockets=True)
        still = before.moved() == now.moved()
        whole = since is None or not leaks(Between(since, now))
        if (still and whole and not now.under_way()) or time.monotonic() > limit:
            return now, 0 if still else now.passed_since(before)
        before = now


def longest_wait_s(rules: Rules) -> float:
    """There and back."""
    delays = [r.profile.delay for here in rules.values() for r in here if r.profile.delay]
    return 2 * max((d.mean_ms + LONGEST_DELAY_FACTOR * d.jitter_ms for d in delays), default=0.0) / 1000


def not_in_force(read_back: dict[Hook, list[ReadBack]]) -> list[str]:
    """What the kernel no longer has as it was put there, in words."""
    out = []
    for hook, entries in read_back.items():
        if entries[0].foreign:
            out.append(f"{hook.name}: {entries[0].foreign} filters that are not ours stand at the loss point")
        for one in entries:
            if not (one.attached and one.equal):
                state = "changed" if one.attached else "not attached"
                out.append(f"{hook.name}: rule {one.rule} is {state} in the kernel")
    return out
