"""Puts a program of ours at a device, and the gate at the NIC itself."""

from __future__ import annotations

import os
from collections.abc import Callable

from pyroute2 import IPRoute

from lossbench.net.bpf import syscalls
from lossbench.net.nic.facts import Facts
from lossbench.net.tc import ours
from lossbench.net.tc.hook import PARENT, Side, ensure_clsact
from lossbench.net.tc.look import Look

BeforeMaking = Callable[..., None]


def put_program(
    handle: IPRoute, index: int, code: bytes, *, network_id: str, priority: int, side: Side = "ingress"
) -> None:
    """On a device of ours the priority is free; at the NIC `safety` found one."""
    name = ours.FILTER_NAME.format(network_id)
    fd = syscalls.load_classifier(code, name="lossbench_nic")
    try:
        ensure_clsact(handle, index)
        at = {"parent": PARENT[side], "prio": priority, "handle": 1}
        handle.tc("add-filter", "bpf", index, fd=fd, name=name, direct_action=True, **at)
    finally:
        os.close(fd)


def open_gate(
    handle: IPRoute,
    before_making: BeforeMaking,
    *,
    network_id: str,
    facts: Facts,
    side: Side,
    priority: int,
    code: bytes,
) -> None:
    before_making(**ours.filter_entry(network_id, facts.name, facts.index, side, priority))
    put_program(handle, facts.index, code, network_id=network_id, priority=priority, side=side)


def no_gate(look: Look, facts: Facts, side: Side, network_id: str) -> list[str]:
    """Somebody may have removed it, or put a filter of his own ahead."""
    try:
        some = look.reader.filters(facts.index, PARENT[side])
    except OSError:
        some = []
    ours_there = bool(some) and some[0].name == ours.FILTER_NAME.format(network_id)
    return [] if ours_there else [f"{side}: the gate is gone, or no longer the first filter"]
