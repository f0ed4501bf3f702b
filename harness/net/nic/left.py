"""What an earlier one has left on an interface: by somebody who was killed, or whose time is over, before a watchdog
has looked again. It is noted first, changing nothing, and taken away once nothing refuses any more."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from lossbench.errors import NotAbleError
from lossbench.net import journal, made
from lossbench.net.host import namespaces
from lossbench.net.journal import Journal
from lossbench.net.nic import facts as nic_facts
from lossbench.net.nic import state, takedown, watchdog
from lossbench.net.nic.facts import Facts
from lossbench.net.nic.state import State
from lossbench.net.tc.ours import FILTER_NAME


def found(interface: str) -> Facts:
    """Of an interface, as it will be without what was left on it; refuses where something stands that has its time."""
    facts = nic_facts.of(interface)
    left = on(facts)
    return without(nic_facts.of(interface), left) if left else facts


def on(facts: Facts, *, but: str = "") -> tuple[str, ...]:
    """By their journals' ids, also of what was taken away while we looked."""
    out = []
    for book in journal.networks():
        one = state.read(book)
        same = one is not None and (one.netns, one.index) == (namespaces.current(), facts.index)
        if one is None or not same or book.id == but or _taken(book):
            continue
        if not _over(book, one):
            raise _already(facts, one)
        out.append(book.id)
    return tuple(out)


def _already(facts: Facts, one: State) -> NotAbleError:
    step = f"lossbench nic revert {facts.name}"
    return NotAbleError(f"{facts.name} is impaired already ({one.profile}, {one.id})", next_step=step)


def _over(book: Journal, one: State) -> bool:
    """Asked while nobody else can change it. A watchdog that is taking it away is through in moments, as is whoever
    else works on what stands by itself; who holds it for as long as he lives is not waited for."""
    if takedown.revoked(book):
        return _until_taken(book)
    held = one.phase in (state.APPLYING, state.ATTACHED) and not watchdog.at_it(book)
    with journal.abandoned(book, wait_s=0.0 if held else journal.WAIT_S) as ours:
        now = state.read(book) if ours else None
        due = now is not None and bool(watchdog.surely_due(book, now, holder_alive=False))
        return due or not watchdog.is_nic(book)  # it was taken away meanwhile


def _taken(book: Journal) -> bool:
    """All of it; its journal stays as long as its holder lives."""
    return takedown.revoked(book) and not any(map(made.exists, book.made()))


def _until_taken(book: Journal) -> bool:
    """By whoever has begun: a clsact that goes only after the next one has counted on it would be missed."""
    limit = time.monotonic() + journal.WAIT_S
    while not (done := _taken(book) or not book.folder.exists()) and time.monotonic() < limit:
        time.sleep(watchdog.LOOK_S / 4)
    return done


def without(facts: Facts, left: Iterable[str]) -> Facts:
    """A clsact that was added for gates goes with them, if nobody else uses it."""
    names = {FILTER_NAME.format(one) for one in left}
    filters = {side: tuple(one for one in some if one.name not in names) for side, some in facts.filters.items()}
    ours = any(entry.kind == "clsact" for one in left for entry in Journal(one).made())
    stays = facts.clsact and (not ours or any(filters.values()))
    return replace(facts, filters=filters, clsact=stays, left=tuple(left))


def cleared(facts: Facts) -> Facts:
    """Taken away now; what the interface is then."""
    if not facts.left:
        return facts
    for one in facts.left:
        if _taken(book := Journal(one)):
            continue
        with journal.abandoned(book, wait_s=journal.WAIT_S) as ours:
            there = state.read(book)
            if there is not None and not (ours and watchdog.surely_due(book, there, holder_alive=False)):
                raise _already(facts, there)
            if ours:
                takedown.take_away_or_say(book)
    return nic_facts.of(facts.name)
