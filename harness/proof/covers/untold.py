"""What hosts counted that may have been a loss or none: said, and judged by nobody. Pure."""

from __future__ import annotations

from lossbench.net.conservation import Between
from lossbench.net.counters import Sockets
from lossbench.proof.watched import Watched

UNTOLD = {
    "tcp_ahead": "packets that came ahead of their turn found no room in TCP (TCPOFODrop)",
    "tcp_unaccepted": "connections were not taken by TCP at their first try (ListenDrops)",
    "no_memory": "packets were refused by sockets, because the machine had only its last memory (PFMemallocDrop)",
}


def untold(watched: Watched) -> list[str]:
    """Of TCP what is sent again either way; of other sockets what is counted as turned away besides."""
    if watched.after is None:
        return []
    links = Between(watched.before, watched.after).links
    inside = [(rank, link.sockets or Sockets()) for rank, link in links.items()]
    found = [(getattr(one, name), text, rank) for name, text in UNTOLD.items() for rank, one in inside]
    return [f"in h{rank} {count} {text}" for count, text, rank in found if count]
