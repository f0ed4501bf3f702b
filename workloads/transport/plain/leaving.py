"""The end of a membership: what others must know of it is told until they do, since any packet may get lost."""

from __future__ import annotations

from lossbench.contract import HEADER_BYTES, Header
from lossbench.workloads.transport import structures
from lossbench.workloads.transport.packet import wire
from lossbench.workloads.transport.plain.control import first_cause
from lossbench.workloads.transport.plain.flows import now_s
from lossbench.workloads.transport.plain.state import GAVE_UP_PAUSE_S, GAVE_UP_TIMES
from lossbench.workloads.transport.plain.ticking import Ticking

QUIET_S, LINGER_S = 0.25, 3.0
GOODBYE_PAUSE_S, GOODBYES = 0.02, 10
GONE = (structures.SILENT, structures.PEER_LEFT)


class Leaving(Ticking):
    aborting = False

    def tell_again(self) -> float:
        """When the next is due; 0: whoever can know does. Whoever does not hear it takes us for the one who is gone."""
        for rank in self.peers:
            if self._to_tell(rank):
                self.tell_gave_up(rank)
        told = [p.gave_up_told for rank, p in self.peers.items() if self._to_tell(rank)]
        due = min(told) + GAVE_UP_PAUSE_S if told else 0.0
        if due:
            self.sooner(due)
        return due

    def _to_tell(self, rank: int) -> bool:
        """Whoever is gone can't be told."""
        p, failed = self.peers[rank], self.failed
        if failed and first_cause(failed) in GONE and rank == failed.about and p.gave_up_times:
            return False
        return not (p.said_goodbye or p.gave_up_too or p.gave_up_times >= GAVE_UP_TIMES)

    def hear_failed(self, header: Header, packet: bytes) -> None:
        """After the end: who knows is answered as long as others are told (it may not know that we know)."""
        p, whole = self.peers[header.source], len(packet) >= HEADER_BYTES + wire.CONTROL_BYTES
        state = wire.Control.unpack(packet[HEADER_BYTES:]).state if header.kind == wire.ACK and whole else None
        knows = state in (wire.GAVE_UP, wire.REFUSED)
        p.gave_up_too = p.gave_up_too or knows
        if not knows or p.gave_up_times < GAVE_UP_TIMES:
            self.tell_gave_up(header.source)

    def linger_failed(self, failed: structures.Failure) -> None:
        until = now_s() + 2 * QUIET_S
        while failed.code != structures.SOCKET_ERROR and self.tell_again() and now_s() < until:
            if not self.step():
                self.nap(2 * QUIET_S)

    def linger(self) -> None:
        """The last acknowledgement may get lost: a peer that repeats its marker must still find somebody; so may a
        goodbye, and whoever did not hear it would wait for us for `timeout_s`."""
        now = now_s()
        until, quiet_since, told, times = now + LINGER_S, now, now, 1
        again = self._say_goodbye()
        self.hurry_tails(now)
        while not self.aborting and now < until and (again or (self._needed() and now - quiet_since < QUIET_S)):
            if again and now - told >= GOODBYE_PAUSE_S:
                times += 1
                again, told = self._say_goodbye() and times < GOODBYES, now
            if self.step():
                quiet_since = now
            else:
                self.nap(GOODBYE_PAUSE_S if again else QUIET_S / 4)
            now = now_s()

    def _say_goodbye(self) -> bool:
        """To those who do not know it yet; False: all do, or left themselves."""
        unaware = [rank for rank, p in self.peers.items() if not p.knows_goodbye]
        for rank in unaware:
            self.tell(rank, wire.GOODBYE, self.rank, 0)
        return any(not self.peers[rank].said_goodbye for rank in unaware)

    def _needed(self) -> bool:
        """By a peer that has not passed what we took part in, or does not know how much of it was sent."""
        untold = [p for p in self.peers.values() if p.passed < self.next or any(t.live for t in p.tails.values())]
        return not all(p.said_goodbye for p in untold)

    # --- what the engine adds ---------------------------------------------------------------------------------------

    def step(self) -> bool:
        raise NotImplementedError

    def nap(self, most_s: float) -> None:
        raise NotImplementedError
