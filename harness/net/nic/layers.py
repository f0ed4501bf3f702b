"""What stands on an interface, and on what it stands itself."""

from __future__ import annotations

from typing import Any

from pyroute2 import IPRoute

VRF = "vrf"


def above(ip: IPRoute, index: int) -> set[int]:
    """The interface and VLANs and the like that stand on it: their packets are its packets."""
    links = {int(link["index"]): link.get_attr("IFLA_LINK") for link in ip.get_links()}
    own = {one: link for one, link in links.items() if link != one}
    found = {index}
    while more := {one for one, link in own.items() if link in found and one not in found and _stacked(ip, one)}:
        found |= more
    return found


def below(ip: IPRoute, index: int) -> dict[int, str]:
    """The interface, and what it stands on in this namespace: the device of a VLAN, members of a bond. Packets pass
    those too."""
    links = {int(link["index"]): link for link in ip.get_links()}
    found = [index]
    for one in found:  # grows
        below = [number for number, link in links.items() if link.get_attr("IFLA_MASTER") == one]
        if _is_stacked(links[one]) and links[one].get_attr("IFLA_LINK_NETNSID") is None:
            below.append(links[one].get_attr("IFLA_LINK"))
        found += [number for number in below if number in links and number not in found]
    return {number: str(links[number].get_attr("IFLA_IFNAME")) for number in found}


def _stacked(ip: IPRoute, index: int) -> bool:
    return _is_stacked(ip.get_links(index)[0])


def _is_stacked(link: Any) -> bool:
    """A veth's IFLA_LINK is its other end, which does not stand on it."""
    info = link.get_attr("IFLA_LINKINFO")
    return info is not None and info.get_attr("IFLA_INFO_KIND") in ("vlan", "macvlan", "ipvlan", "macsec")


def master(ip: IPRoute, index: int | None) -> str:
    """That takes its packets, by its kind and name. A VRF is none: it chooses the table of routes and no other way."""
    if not index:
        return ""
    link = ip.get_links(index)[0]
    info = link.get_attr("IFLA_LINKINFO")
    kind = info.get_attr("IFLA_INFO_KIND") if info is not None else "master"
    if kind == VRF:
        return ""
    return f"{kind} {link.get_attr('IFLA_IFNAME')}"
