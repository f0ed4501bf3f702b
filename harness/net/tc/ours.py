"""What we put on a machine's own interfaces, each with its way back: a link, a clsact, a filter. By names that carry
our id, in the network namespace where they were made: what is not ours is never touched."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from lossbench.net.host import namespaces
from lossbench.net.host.place import Here
from lossbench.net.tc.hook import PARENT, Side
from lossbench.net.tc.rtnl import Reader

FILTER_NAME = "lossbench-{}"


def link_entry(name: str) -> dict[str, Any]:
    return {"kind": "link", "name": name, "before": {"netns": namespaces.current()}}


def clsact_entry(name: str, index: int) -> dict[str, Any]:
    what = {"netns": namespaces.current(), "index": index, "address": _address(index)}
    return {"kind": "clsact", "name": name, "before": what}


def _address(index: int) -> str:
    """Of an interface, which tells it from another that got its number, as its name does: one of both may change while
    ours stands there (a bridge takes its ports' address). Empty if there is none."""
    return _told(index, "IFLA_ADDRESS")


def _name(index: int) -> str:
    return _told(index, "IFLA_IFNAME")


def _told(index: int, what: str) -> str:
    with IPRoute() as ip:
        found = next((link for link in ip.get_links() if link["index"] == index), None)
        return str(found.get_attr(what)) if found is not None else ""


def filter_entry(network_id: str, name: str, index: int, side: Side, priority: int) -> dict[str, Any]:
    what = {"netns": namespaces.current(), "index": index, "side": side, "priority": priority, "id": network_id}
    return {"kind": "filter", "name": f"{name} {side}", "before": what}


class _Thing:
    """In its own namespace; gone with it."""

    needs: dict[str, Any] = {"netns": str}  # noqa: RUF012 - of the journal's line

    def exists(self, entry: Any) -> bool:
        return bool(self._there(entry, self._found))

    def undo(self, entries: list[Any]) -> tuple[list[int], list[str]]:
        failed = []
        for entry in entries:
            try:
                self._there(entry, self._remove)
            except (OSError, NetlinkError) as error:
                failed.append(f"{entry.kind} {entry.name}: {error}")
        return [], failed

    def _there(self, entry: Any, what: Callable[[Any], Any]) -> Any:
        place = namespaces.file_of(entry.before["netns"])
        if place is None:
            return None
        with namespaces.inside_file(place):
            return what(entry)

    def _found(self, entry: Any) -> Any:
        raise NotImplementedError

    def _remove(self, entry: Any) -> None:
        raise NotImplementedError


class Links(_Thing):
    """Of a pair one is enough: the other goes with it."""

    def _found(self, entry: Any) -> bool:
        with IPRoute() as ip:
            return bool(ip.link_lookup(ifname=entry.name))

    def _remove(self, entry: Any) -> None:
        with IPRoute() as ip:
            for index in ip.link_lookup(ifname=entry.name):
                try:
                    ip.link("del", index=index)
                except NetlinkError as error:
                    if error.code != errno.ENODEV:  # somebody else was faster
                        raise


class Clsacts(_Thing):
    """That was added by us; one that others use meanwhile is theirs."""

    needs = {"netns": str, "index": int, "address": str}  # noqa: RUF012

    def _found(self, entry: Any) -> bool:
        index = entry.before["index"]
        reader = Reader(Here())
        try:
            there = any(one.kind == "clsact" and one.index == index for one in reader.qdiscs())
            there = there and (_address(index) == entry.before["address"] or _name(index) == entry.name)
            return there and not any(reader.filters(index, parent) for parent in PARENT.values())
        finally:
            reader.close()

    def _remove(self, entry: Any) -> None:
        with IPRoute() as ip, suppress(NetlinkError):
            if self._found(entry):
                ip.tc("del", "clsact", entry.before["index"])


class Filters(_Thing):
    """One that carries our name, at its priority."""

    needs = {"netns": str, "index": int, "side": tuple(PARENT), "priority": int, "id": str}  # noqa: RUF012

    def _found(self, entry: Any) -> list[int]:
        """Handles."""
        before = entry.before
        reader = Reader(Here())
        try:
            some = reader.filters(before["index"], PARENT[before["side"]])
            ours = FILTER_NAME.format(before["id"])
            return [one.handle for one in some if one.priority == before["priority"] and one.name == ours]
        except OSError:  # no such interface, or no clsact any more
            return []
        finally:
            reader.close()

    def _remove(self, entry: Any) -> None:
        before = entry.before
        with IPRoute() as ip:
            for handle in self._found(entry):
                parent, priority = PARENT[before["side"]], before["priority"]
                ip.tc("del-filter", "bpf", before["index"], handle=handle, parent=parent, prio=priority)
