"""What an agent says of its machine. Every public method is a question."""

from __future__ import annotations

import os
import platform
import socket
import time
from typing import Any

from pyroute2 import IPRoute

from lossbench import __version__
from lossbench.errors import NotAbleError
from lossbench.net.host import rootless
from lossbench.net.kernel import Kernel
from lossbench.net.nic import facts, impaired
from lossbench.net.tc import offloads


class Machine:
    def about(self) -> dict[str, Any]:
        kernel = Kernel.tried() if not rootless.needed() else None
        able = impaired.able(kernel) if kernel is not None else []
        return {
            "host": socket.gethostname(),
            "lossbench": __version__,
            "python": platform.python_version(),
            "kernel": platform.release(),
            "architecture": platform.machine(),
            "root": not rootless.needed(),
            "torch": _torch_version(),
            "backends": able,
            "cpus": os.cpu_count() or 1,
        }

    def time(self) -> float:
        return time.time()

    def interface(self, name: str) -> dict[str, Any]:
        found = facts.of(name)
        on = offloads.read(name, None)
        return {
            "mtu": found.mtu,
            "up": found.up,
            "default_route": found.default_route,
            "ssh_here": found.ssh_here,
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


def _torch_version() -> str:
    """Without loading it, which takes seconds."""
    from importlib import metadata

    try:
        return metadata.version("torch")
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
