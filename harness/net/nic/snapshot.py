"""An interface as it is, without what only counts: two of them are equal if nothing was left, byte for byte."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from lossbench.net.host.place import Here
from lossbench.net.tc import offloads
from lossbench.net.tc.rtnl import Reader
from lossbench.net.tc.rtnl_messages import LINKMSG, RTM_GETLINK, RTM_GETQDISC, RTM_GETTCLASS, RTM_GETTFILTER, attributes
from lossbench.net.tc.rtnl_messages import tcmsg as tc_message

# Attributes of a tc message that count: TCA_STATS, TCA_XSTATS, TCA_RATE, TCA_STATS2.
_COUNTING = (3, 4, 5, 7)
# IFLA attributes that say how an interface is set: address, MTU, queue length, master, GSO and GRO limits, alias.
_SETTINGS = {1: "address", 4: "mtu", 13: "txqlen", 10: "master", 40: "gso_max_segs", 41: "gso_max_size"}
_SETTINGS |= {20: "alias", 58: "gro_max_size"}
_ACTIONS = {"bpf": 1, "matchall": 2, "flower": 3, "u32": 7}
_HITS = {"u32": (9,), "matchall": (4,)}
_TCM_INDEX, _TC_HEAD = slice(4, 8), 20
_NETLINK_HEAD, _NAME = 16, 3


def of(index: int) -> dict[str, Any] | None:
    """Of an interface in the current network namespace; None if it is gone."""
    reader = Reader(Here())
    try:
        link = _link(reader, index)
        if link is None:
            return None
        qdiscs = [_plain_qdisc(one) for one in reader.dump(RTM_GETQDISC, tc_message(0)) if _index(one) == index]
        classes = [_plain(one) for one in reader.dump(RTM_GETTCLASS, tc_message(index)) if not _is_flow(one)]
        parents = [0xFFFFFFF2, 0xFFFFFFF3, 0, *_handles(qdiscs), *_handles(classes)]
        filters = {}
        for parent in dict.fromkeys(parents):
            try:
                found = reader.dump(RTM_GETTFILTER, tc_message(index, parent))
            except OSError:  # nothing there that could have filters
                continue
            filters[f"{parent:x}"] = [_plain_filter(one) for one in found]
        return {
            "qdiscs": qdiscs,
            "classes": classes,
            "filters": {parent: some for parent, some in filters.items() if some},
            "link": {word: link[kind].hex() for kind, word in _SETTINGS.items() if kind in link},
            "features": offloads.read(link[_NAME].rstrip(b"\0").decode(), None),
        }
    finally:
        reader.close()


def _link(reader: Reader, index: int) -> dict[int, bytes] | None:
    found = reader.dump(RTM_GETLINK, LINKMSG.pack(0, 0, 0, 0, 0, 0))
    return next((attributes(one, _NETLINK_HEAD) for one in found if _index(one) == index), None)


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """In words; empty if there are none."""
    out = []
    for part in before:
        if before[part] != after.get(part):
            was, now = (json.dumps(one.get(part), sort_keys=True) for one in (before, after))
            out.append(f"{part} are not as before ({_short(was)} then, {_short(now)} now)")
    return out


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _index(message: bytes) -> int:
    return int.from_bytes(message[_TCM_INDEX], "little")


def _is_flow(message: bytes) -> bool:
    """Qdiscs that sort by flow list those that are busy now as classes."""
    return attributes(message, _TC_HEAD).get(1, b"").rstrip(b"\0") in (b"fq_codel", b"sfq", b"fq", b"cake", b"fq_pie")


def _plain(message: bytes) -> str:
    """Head and attributes without those that count."""
    head = message[:_TC_HEAD]
    kept = {kind: value for kind, value in attributes(message, _TC_HEAD).items() if kind not in _COUNTING}
    return head.hex() + "".join(f" {kind}:{value.hex()}" for kind, value in sorted(kept.items()))


def _plain_qdisc(message: bytes) -> str:
    """Without how many hold it, too, and what HTB let through directly."""
    said = _plain(message[: _TC_HEAD - 4] + bytes(4) + message[_TC_HEAD:])
    kept = attributes(message, _TC_HEAD)
    start = attributes(kept.get(2, b"")).get(2, b"") if kept.get(1, b"").startswith(b"htb") else b""
    return said.replace(start.hex(), start[:16].hex()) if len(start) == 20 else said


def _plain_filter(message: bytes) -> str:
    """Without what its actions and its hits count, too."""
    kept = attributes(message, _TC_HEAD)
    kind = kept.get(1, b"").rstrip(b"\0").decode(errors="replace")
    options = attributes(kept.get(2, b""))
    shown = {
        key: _quiet_actions(value) if key == _ACTIONS.get(kind) else value.hex()
        for key, value in sorted(options.items())
        if kind in _ACTIONS and key not in _HITS.get(kind, ())  # of kinds that we do not know, that they are there
    }
    return f"{message[:_TC_HEAD].hex()} {kind} {json.dumps(shown)}"


def _quiet_actions(value: bytes) -> str:
    """Of each action its kind and parameters, neither statistics nor times."""
    out = []
    for _, one in sorted(attributes(value).items()):
        action = attributes(one)
        kind = action.get(1, b"").rstrip(b"\0").decode(errors="replace")
        times = 8 if kind == "police" else 1
        kept = {key: v.hex() for key, v in sorted(attributes(action.get(2, b"")).items()) if key != times}
        out.append(f"{kind} {json.dumps(kept)}")
    return "; ".join(out)


def _handles(messages: list[str]) -> list[int]:
    """Of qdiscs and classes: their filters hang there."""
    return [int.from_bytes(bytes.fromhex(one.split(" ")[0])[8:12], "little") for one in messages]
