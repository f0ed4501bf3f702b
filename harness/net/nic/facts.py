"""What an interface is, as far as it matters before one touches it. Reads, changes nothing."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from lossbench.errors import RunError, UsageError
from lossbench.net.bpf import syscalls
from lossbench.net.host.place import Here
from lossbench.net.nic import layers
from lossbench.net.tc import offloads
from lossbench.net.tc.hook import PARENT, Side
from lossbench.net.tc.rtnl import Reader
from lossbench.net.tc.rtnl_messages import Filter

ARPHRD_ETHER = 1
IP = (socket.AF_INET, socket.AF_INET6)
ESTABLISHED = "01"
FEATURES = ("hardware_tc", "lro", "xdp")


@dataclass(frozen=True, kw_only=True)
class Ssh:
    """The connection that the operator came by."""

    client: str
    client_port: int
    server_port: int
    server: str = ""
    scope: str = ""  # the interface of link-local addresses

    @property
    def peer(self) -> str:
        return f"{ipaddress.ip_address(self.client)} {self.client_port}"


@dataclass(frozen=True, kw_only=True)
class Facts:
    name: str
    index: int
    mtu: int
    up: bool = True
    ethernet: bool = True
    loopback: bool = False
    xdp: bool = False
    master: str = ""  # its kind and name
    default_route: bool = False
    gateways: tuple[str, ...] = ()
    ssh: Ssh | None = None
    ssh_here: bool = False  # the operator's connection runs over it
    rdma: tuple[str, ...] = ()  # devices whose traffic never meets a qdisc
    hardware_tc: bool = False
    lro: bool = False
    clsact: bool = False
    old_ingress: bool = False  # an ingress qdisc, which knows no egress and leaves no room for clsact
    filters: dict[Side, tuple[Filter, ...]] = field(default_factory=dict)
    ahead: dict[Side, int] = field(default_factory=dict)  # tcx programs
    at: dict[str, str] = field(default_factory=dict)  # which of the devices below it has lro, hardware_tc, xdp
    left: tuple[str, ...] = ()  # journals of ours that nobody works on any more: see left.py


def of(name: str, environment: Mapping[str, str] | None = None) -> Facts:
    """Of an interface in the current network namespace."""
    with present(name):
        try:
            return _looked_at(name, environment)
        except (NetlinkError, OSError) as error:
            if not (_no_device(error) and _exists(name)):
                raise
            return _looked_at(name, environment)  # another one went away: above it, below it, anywhere


def _looked_at(name: str, environment: Mapping[str, str] | None) -> Facts:
    with IPRoute() as ip:
        found = ip.link_lookup(ifname=name) if 0 < len(name) < 16 else []
        if not found:
            known = ", ".join(sorted(link.get_attr("IFLA_IFNAME") for link in ip.get_links()))
            step = f"there are: {known}; a NIC that DPDK has taken shows no interface, and its packets meet no qdisc"
            raise UsageError(f"no interface {printable(name)}", next_step=step)
        index = int(found[0])
        link = ip.get_links(index)[0]
        ssh = ssh_connection(os.environ if environment is None else environment)
        indices = layers.above(ip, index)
        default, gateways = _default_routes(ip, indices)
        devices = layers.below(ip, index)
        features = {one: _features(one, number) for number, one in devices.items()}
        return Facts(
            name=name,
            index=index,
            mtu=int(link.get_attr("IFLA_MTU")),
            up=link.get_attr("IFLA_OPERSTATE") in ("UP", "UNKNOWN"),
            ethernet=link["ifi_type"] == ARPHRD_ETHER,
            loopback=bool(link["flags"] & 0x8),
            master=layers.master(ip, link.get_attr("IFLA_MASTER")),
            default_route=default,
            gateways=gateways,
            ssh=ssh,
            ssh_here=ssh is not None and bool(_ways(ip, ssh) & indices),
            rdma=tuple(sorted({device for one in devices.values() for device in _rdma(one)})),
            at={word: next((one for one, on in features.items() if on[word]), name) for word in FEATURES},
            **_anywhere(features),
            **_hooks(index),
        )


def printable(name: str) -> str:
    """In one line, whatever somebody typed."""
    return f"'{name[:60]}'" if name.isprintable() else repr(name[:60])


@contextmanager
def present(name: str) -> Iterator[None]:
    """Somebody may delete it while we look at it, or put something there; or another one, which is not it."""
    try:
        yield
    except (NetlinkError, OSError) as error:
        if not _no_device(error):
            raise
        if _exists(name):
            raise RunError(f"{name}: a device beside it went away meanwhile", next_step="try again") from error
        raise RunError(f"{name} went away meanwhile", next_step="ip -br link shows what there is") from error


def _no_device(error: NetlinkError | OSError) -> bool:
    return (error.code if isinstance(error, NetlinkError) else error.errno) in (errno.ENODEV, errno.ENXIO)


def _exists(name: str) -> bool:
    with IPRoute() as ip:
        return bool(ip.link_lookup(ifname=name))


def ssh_connection(environment: Mapping[str, str]) -> Ssh | None:
    """Of this process or of one that it came from: sudo and su forget the variable, their parents do not."""
    words = told("SSH_CONNECTION", environment)
    parts = words.split()
    try:
        client, client_port, server, server_port = parts
        return Ssh(
            client=str(ipaddress.ip_address(client.partition("%")[0])),
            client_port=int(client_port),
            server_port=int(server_port),
            server=str(ipaddress.ip_address(server.partition("%")[0])),
            scope=server.partition("%")[2] or client.partition("%")[2],
        )
    except ValueError:
        return None


def ssh_server_address(environment: Mapping[str, str]) -> str:
    """That the operator came to; empty without ssh."""
    words = told("SSH_CONNECTION", environment).split()
    return words[2].partition("%")[0] if len(words) == 4 else ""


def connections(server_port: int | None = None) -> tuple[str, ...]:
    """Peers that are connected to this port (None: to any) now, as `Ssh.peer` writes them."""
    out = []
    for name in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/thread-self/net/{name}").read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            local, remote, status = line.split()[1:4]
            if status == ESTABLISHED and server_port in (None, int(local.rpartition(":")[2], 16)):
                address, _, port = remote.partition(":")
                out.append(f"{_readable(address)} {int(port, 16)}")
    return tuple(out)


def _readable(text: str) -> str:
    """Words of four bytes, each as the machine holds it."""
    raw = b"".join(bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
    address = ipaddress.ip_address(raw)
    return str(getattr(address, "ipv4_mapped", None) or address)


def told(variable: str, environment: Mapping[str, str]) -> str:
    """By our environment, or by that of a process that we came from: sudo passes few of them on."""
    return environment.get(variable, "") or _of_ancestors(variable)


def _of_ancestors(variable: str) -> str:
    start = f"{variable}=".encode()
    pid = os.getppid()
    while pid > 1:
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                if line.startswith(start):
                    return line.partition(b"=")[2].decode(errors="replace")
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return ""
    return ""


def _default_routes(ip: IPRoute, indices: set[int]) -> tuple[bool, tuple[str, ...]]:
    """Whether one leads over these interfaces, and its gateways; next hops of other routes are peers like any other."""
    default, gateways = False, []
    for route in ip.get_routes():
        if route["dst_len"]:
            continue
        hops = [(route.get_attr("RTA_OIF"), route.get_attr("RTA_GATEWAY"))]
        for hop in route.get_attr("RTA_MULTIPATH") or ():
            hops.append((hop["oif"], hop.get_attr("RTA_GATEWAY")))
        for oif, gateway in hops:
            default = default or oif in indices
            if oif in indices and gateway:
                gateways.append(str(gateway))
    return default, tuple(dict.fromkeys(gateways))


def _ways(ip: IPRoute, ssh: Ssh) -> set[int]:
    """Interfaces that a session runs over: the one that has the server's address, since packets come to it there, and
    the one by which answers leave. Of a link-local address every interface may have the same; its scope says which."""
    if ssh.scope:
        return {int(ssh.scope)} if ssh.scope.isdecimal() else set(ip.link_lookup(ifname=ssh.scope))
    there = {int(one["index"]) for one in ip.get_addr() if one["family"] in IP and _address_of(one) == ssh.server}
    with suppress(NetlinkError, OSError, ValueError, TypeError):
        found = ip.route("get", dst=ssh.client, **({"src": ssh.server} if there else {}))
        there |= {int(one.get_attr("RTA_OIF")) for one in found}
    return there


def _address_of(found: Any) -> str:
    """The interface's own; of a point-to-point one IFA_ADDRESS is the other end's."""
    return str(ipaddress.ip_address(found.get_attr("IFA_LOCAL") or found.get_attr("IFA_ADDRESS")))


def _rdma(name: str) -> tuple[str, ...]:
    folder = Path("/sys/class/infiniband")
    devices = folder.iterdir() if folder.is_dir() else iter(())
    return tuple(sorted(one.name for one in devices if (one / "device" / "net" / name).exists()))


def _features(name: str, index: int) -> dict[str, bool]:
    """See FEATURES."""
    on = offloads.read(name, None)
    reader = Reader(Here())
    try:
        xdp = reader.link(index).xdp
    finally:
        reader.close()
    return {"hardware_tc": on.get("hw-tc-offload", False), "lro": on.get("rx-lro", False), "xdp": xdp}


def _anywhere(features: dict[str, dict[str, bool]]) -> dict[str, Any]:
    return {word: any(one[word] for one in features.values()) for word in FEATURES}


def _hooks(index: int) -> dict[str, Any]:
    reader = Reader(Here())
    try:
        kinds = {one.kind for one in reader.qdiscs() if one.index == index}
        there = "clsact" in kinds or "ingress" in kinds
        filters = {side: tuple(reader.filters(index, parent)) if there else () for side, parent in PARENT.items()}
        return {
            "clsact": "clsact" in kinds,
            "old_ingress": "ingress" in kinds,
            "filters": filters,
            "ahead": {side: syscalls.tcx_programs(index, side) for side in PARENT},
        }
    finally:
        reader.close()
