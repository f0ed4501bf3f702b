"""Looks at a lab before it is used: every machine by itself, all together, the ways between them, the switch."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from lossbench.errors import LossbenchError
from lossbench.net.lab import fit, way
from lossbench.net.lab.channel import Channel
from lossbench.net.lab.fit import Row
from lossbench.net.lab.network import asked
from lossbench.net.lab.orders import Channels, channels
from lossbench.spec.lab import Lab


@dataclass(kw_only=True)
class Checked:
    """`wrong`, `notes`: of no machine alone. `switch`: what it has dropped so far, if it can be asked."""

    machines: list[Row]
    switch: dict[str, int] | None = None
    wrong: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def usable(self) -> bool:
        return not self.wrong and not any(row.wrong for row in self.machines)


def check(lab: Lab) -> Checked:
    rows = {rank: Row(name=name, ssh=lab.machine[rank].ssh) for rank, name in enumerate(lab.names())}
    out = Checked(machines=list(rows.values()))
    with channels(lab) as machines:
        for rank, error in machines.closed.items():
            rows[rank].wrong.append(_words(error, rows[rank]))
        said = machines.each(_alone)
        rightly = {rank: one for rank, one in said.items() if not isinstance(one, LossbenchError)}
        addresses = [one["address"] for one in rightly.values()]
        for rank, one in said.items():
            if isinstance(one, LossbenchError):
                rows[rank].wrong.append(_words(one, rows[rank]))
            else:
                fit.judge(rows[rank], one, addresses)
        mtus = {rows[rank].name: int(one["interface"]["mtu"]) for rank, one in rightly.items()}
        out.wrong += [f"{text}, which runs refuse; {step}" for text, step in fit.mixed(mtus, addresses)]
        out.notes += fit.unlike(out.machines)
        _ways(machines, rows)
    try:
        out.switch = asked(lab.switch)
    except LossbenchError as error:
        out.wrong.append(str(error))
    return out


def _words(error: LossbenchError, row: Row) -> str:
    """Whose they are stands before them already."""
    return str(error).removeprefix(row.name).removeprefix(f" ({row.ssh})").removeprefix(": ")


def _alone(channel: Channel) -> dict[str, Any]:
    name = channel.machine.interface
    return {
        "about": channel.ask("machine.about"),
        "clock": channel.clock("machine.time", time.time),
        "interface": channel.ask("machine.interface", name=name, past_rdma=channel.machine.past_rdma),
        "name": name,
        "address": channel.machine.address,
    }


def _ways(machines: Channels, rows: dict[int, Row]) -> None:
    able = {rank for rank in machines.open if not rows[rank].wrong}
    pairs = []
    for rank in sorted(able) if len(machines.open) > 1 else ():
        other = way.next_to(rank, machines.open)
        if other in able:
            pairs.append((rank, other))
        else:  # which is its own mistake, not this one's
            rows[rank].notes.append(f"the way to h{other} was not tried: h{other} can't be used")
    with ThreadPoolExecutor(max_workers=max(1, len(able) // 2)) as pool:
        for some in way.rounds(pairs):
            list(pool.map(lambda pair: _to_the_next(machines, pair, rows), some))


def _to_the_next(machines: Channels, pair: way.Pair, rows: dict[int, Row]) -> None:
    rank, other = pair
    row, to = rows[rank], rows[other].name
    try:
        mtu = min(rows[one].interface["mtu"] for one in (rank, other))
        found = way.measured(machines.open[rank], machines.open[other], mtu=mtu)
    except LossbenchError as error:
        row.wrong.append(f"to {to}: {error.message}")
        return
    row.path = found.as_json(to)
    row.wrong += found.wrong(to)
    row.notes += found.notes(to)
