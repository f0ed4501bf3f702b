"""The way back: the kernel's own deadline first, then gates, then what is still on its way, then everything."""

from __future__ import annotations

import time
from contextlib import suppress

from lossbench.errors import RunError
from lossbench.net import made
from lossbench.net.host import namespaces
from lossbench.net.host.place import Here
from lossbench.net.journal import Journal, Removed
from lossbench.net.nic import state
from lossbench.net.nic.way.clock import Clock
from lossbench.net.tc.rtnl import Reader

DRAIN_S, DRAIN_STEP_S = 2.0, 0.01  # most profiles delay by less


REVOKED = "revoked"  # a file in the journal's folder: who still makes things there must stop


def take_away(book: Journal, *, holder_lives: bool = False) -> Removed:
    """Idempotent: half of it, by somebody who was killed, is finished. While its holder lives the journal stays: what
    that one makes yet must be found again."""
    if holder_lives:
        (book.folder / REVOKED).touch()
    _end_loss(book)
    gates = [entry for entry in book.made() if entry.kind == "filter"]
    made.undo([entry for entry in gates if made.exists(entry)])
    _drain(book)
    return book.undo(keep=holder_lives)


def _end_loss(book: Journal) -> None:
    """Gates lead nothing aside any more, whether or not they can be taken away. Who puts the deadline off while it
    lives must ask `revoked` first."""
    found = state.read(book)
    clock = Clock.opened(found.maps) if found is not None and any(found.maps) else None
    if clock is not None:
        with suppress(OSError):
            clock.set(0.0)
        clock.close()


def revoked(book: Journal) -> bool:
    return (book.folder / REVOKED).exists()


def take_away_or_say(book: Journal) -> None:
    removed = take_away(book)
    if removed.failed:
        raise RunError("; ".join(removed.failed), next_step="lossbench clean")


def _drain(book: Journal) -> None:
    """Packets that wait in a delay still reach the wire."""
    links = [entry for entry in book.made() if entry.kind == "link"]
    place = namespaces.file_of(links[0].before["netns"]) if links else None
    if place is None:
        return
    names = {entry.name for entry in links}
    with suppress(OSError), namespaces.inside_file(place):
        reader = Reader(Here())
        try:
            limit = time.monotonic() + DRAIN_S
            while time.monotonic() < limit:
                time.sleep(DRAIN_STEP_S)
                ours = {index for index, link in reader.links().items() if link.name in names}
                if not any(one.waiting for one in reader.qdiscs() if one.index in ours):
                    return
        finally:
            reader.close()
