"""What an agent does to its machine's interface by itself: for a while, or as long as its channel lives. Every public
method is a question."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

from lossbench.errors import RunError
from lossbench.net.journal import Journal
from lossbench.net.nic import facts, impaired, standing, state, takedown
from lossbench.net.nic.request import Request
from lossbench.net.nic.state import State
from lossbench.net.nic.way.clock import Clock
from lossbench.net.nic.way.programs import Traffic
from lossbench.spec.profile import Profile


class Nic:
    def __init__(self) -> None:
        self._held: State | None = None
        self._applied: State | None = None
        self._kept = False  # what was applied may outlive this channel

    def apply(self, interface: str, profile: dict[str, Any], traffic: dict[str, Any], **asked: Any) -> dict[str, Any]:
        """`attached`: for as long as this channel lives and beats."""
        peers, ports = tuple(traffic.pop("peers", ())), tuple((a, b) for a, b in traffic.pop("ports", ()))
        asked["sides"] = tuple(asked["sides"])
        request = Request.of(
            Profile.model_validate(profile),
            interface=interface,
            traffic=Traffic(peers=peers, ports=ports, **traffic),
            **asked,
        )
        found = self._applied = impaired.apply(request)
        self._kept = False
        if request.attached:
            self._held = found
        return asdict(found)

    def confirm(self, interface: str) -> None:
        standing.confirm(interface, facts.ssh_connection(os.environ), at_console=False)

    def keep(self) -> None:
        """Every machine has confirmed: from now on it stands by itself. Until this is said, the channel's end takes
        it back, so that a controller that dies on the way leaves nothing on some machines and not on others."""
        mine = self._applied
        if mine is None or not any(one.id == mine.id for _, one in standing.standing()):
            raise RunError("what was applied is gone already")
        self._kept = True

    def show(self, interface: str) -> dict[str, Any] | None:
        for _, one in standing.standing():
            if one.interface == interface:
                return standing.describe(one)
        return None

    def revert(self, interface: str) -> list[str] | None:
        """What is not as before; None if nothing of ours stood there."""
        if not any(one.interface == interface for _, one in standing.standing()):
            return None
        self._held = None
        return standing.revert(interface)

    def take_back(self) -> None:
        """What this agent has applied, if it still stands; never anybody else's."""
        mine, self._applied, self._held = self._applied, None, None
        for book, one in standing.standing():
            if mine is not None and one.id == mine.id:
                removed = standing.ended(book, one)
                if removed.failed:
                    raise RunError("; ".join(removed.failed), next_step="lossbench clean there")

    def beat(self) -> None:
        if self._held is not None and not takedown.revoked(Journal(self._held.id)):
            clock = Clock.opened(self._held.maps)
            if clock is not None:
                clock.set(min(state.now() + state.LEASE_S, self._held.expires))
                clock.close()

    def close(self) -> None:
        held, self._held = self._held, None  # no beat from now on
        if held is not None:
            takedown.take_away_or_say(Journal(held.id))
        elif not self._kept:
            self.take_back()
