"""What an agent says of its machine. Every public method is a question."""

from __future__ import annotations

import os
import platform
import socket
import time
from typing import Any

from pyroute2 import IPRoute

from lossbench.errors import NotAbleError
from lossbench.net.kernel import Kernel
from lossbench.net.nic import facts, impaired, safety, standing
from lossbench.net.nic.way.clock import SIDES
from lossbench.net.tc import offloads
from lossbench.net.tc.hook import Side


class Machine:
    def about(self) -> dict[str, Any]:
        kernel = Kernel.tried()
        return {
            "host": socket.gethostname(),
            "python": platform.python_version(),
            "kernel": platform.release(),
            "architecture": platform.machine(),
            "torch": _version("torch"),
            "numpy": _version("numpy"),
            "backends": impaired.able(kernel),
            "no_gate": kernel.no_program() or "",
            "cpus": os.cpu_count() or 1,
        }

    def time(self) -> float:
        return time.time()

    def interface(self, name: str, *, past_rdma: bool) -> dict[str, Any]:
        """With what would be refused: at egress alone, and what ingress adds. What stands there of ours says nothing
        of what stood before."""
        found, on = facts.of(name), offloads.read(name, None)
        ours = [one.profile for _, one in standing.standing() if one.interface == name]
        sides: tuple[tuple[Side, ...], ...] = ((), ()) if ours else (("egress",), SIDES)
        one_side, both = (safety.reasons(found, some, this_nic=True, past_rdma=past_rdma) for some in sides)
        return {
            "mtu": found.mtu,
            "up": found.up,
            "default_route": found.default_route,
            "ssh_here": found.ssh_here,
            "gateways": list(found.gateways),
            "impaired": ", ".join(ours),
            "refused": one_side,
            "refused_in": [one for one in both if one not in one_side],
            "addresses": _addresses(found.index),
            "offloads": sorted(word for word in on if on[word] and ("segmentation" in word or word.startswith("rx-"))),
        }

    def monotonic(self) -> float:
        return time.monotonic()

    def control(self, asked: str) -> dict[str, str]:
        """Address and interface by which other machines reach this one beside the data network."""
        address = asked or _reached_by()
        if not address:
            raise NotAbleError("its control address can't be told", next_step='control = "..." in lab.toml')
        return {"address": address, "interface": self.with_address(address)}

    def address_of(self, interface: str) -> str:
        """Its first one, IPv4 if it has any."""
        found = [one for one in _addresses(facts.of(interface).index) if not one.startswith("fe80")]
        if not found:
            raise NotAbleError(f"{interface} has no address", next_step="give it one: ip addr add ...")
        return min(found, key=lambda one: ":" in one)

    def with_address(self, address: str) -> str:
        """The interface that has it."""
        with IPRoute() as ip:
            found = [one["index"] for one in ip.get_addr() if one.get_attr("IFA_ADDRESS") == address]
            names = [link.get_attr("IFLA_IFNAME") for link in ip.get_links() if link["index"] in found]
        if not names:
            raise NotAbleError(f"no interface of it has the address {address}", next_step="see lab.toml")
        return str(names[0])


def _version(package: str) -> str:
    """Without loading it, which takes seconds."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _addresses(index: int) -> list[str]:
    with IPRoute() as ip:
        return [one.get_attr("IFA_ADDRESS") for one in ip.get_addr(index=index)]


def _reached_by() -> str:
    """The one from which srun's machine is reached, inside an allocation; else the one that ssh came to."""
    there = facts.told("SLURM_LAUNCH_NODE_IPADDR", os.environ)
    if not there:
        return facts.ssh_server_address(os.environ)
    with socket.socket(socket.AF_INET6 if ":" in there else socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect((there, 9))  # nothing is sent
        return str(one.getsockname()[0])
