"""netem beside a NIC: as in a star, a device of its own for each rule; but a veth instead of an IFB, whose other end
leads onward to the NIC. (Loading the kernel's ifb module would leave devices of its own behind.)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyroute2 import IPRoute

from lossbench.net.impair.netem.backend import NetemBackend
from lossbench.net.tc.hook import HookPoint
from lossbench.spec.placement import Hook, Rule

QUEUE_PACKETS = 10_000


class VethNetem(NetemBackend):
    """`named(slot)`: both ends of a rule's pair; `make(slot)` makes it, and returns the near end's number."""

    device_kind = "veth"
    let_pass = "unspec"  # on to the next filter, which leads onward

    @staticmethod
    def count_super_packets(switch: IPRoute, point: HookPoint) -> None:
        """Packets were cut on their way here."""
        del switch, point

    def __init__(
        self,
        *arguments: Any,
        named: Callable[[int], tuple[str, str]],
        make: Callable[[int], int] | None = None,
        **more: Any,
    ) -> None:
        self._named, self._make = named, make
        super().__init__(*arguments, **more)

    def _device_name(self, hook: Hook, rule: Rule) -> str:
        return self._named(self._slots[hook][rule.place])[0]

    def _device(self, point: HookPoint, rule: Rule) -> int:
        found = self._switch.link_lookup(ifname=self._device_name(point.hook, rule))
        if found:
            return int(found[0])
        assert self._make is not None, "who only reads makes nothing"
        index = self._make(self._slots[point.hook][rule.place])
        self._switch.link("set", index=index, txqlen=QUEUE_PACKETS)
        return index
