"""What this machine can do, found by trying it in a throw-away network namespace; never by reading a config file."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from lossbench.net.bpf import syscalls
from lossbench.net.bpf.assembler import Assembler
from lossbench.net.host import rootless
from lossbench.net.host.namespaces import CLONE_NEWNET
from lossbench.net.tc import kinds, offloads
from lossbench.net.tc.hook import PARENT, aside
from lossbench.net.tc.oversize import longer_than
from lossbench.processes import inherited

QDISCS = ("netem", "prio", "ets", "fq", "fq_codel", "htb", "tbf", "bfifo", "clsact")
CLASSIFIERS = ("bpf", "u32", "flower", "matchall")
CLONE_NEWUSER = 0x10000000
LOAD_S = 20.0


NOT_ALLOWED = "not permitted, needs root"


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """What was tried. `namespaces`, `bpf`, `offloads`: None if it works, else the reason."""

    namespaces: str | None
    qdiscs: dict[str, bool] = field(default_factory=dict)
    classifiers: dict[str, bool] = field(default_factory=dict)
    mirred: bool = False
    ifb: bool = False
    bpf: str | None = "not tried"
    offloads: str | None = "not tried"
    tun: str | None = "not tried"

    @classmethod
    def tried(cls) -> Kernel:
        """Everything is tried, in a namespace that belongs to one thread and ends with it."""
        kinds.install()
        _load_bare("ifb", "numifbs=0")
        result: list[Kernel] = []
        thread = threading.Thread(target=lambda: result.append(_try_all()))
        thread.start()
        thread.join()
        return result[0] if result else cls(namespaces="trying the kernel failed: see the error above")

    def no_hook(self) -> str | None:
        """Why filters can't be put at a hook; None if they can."""
        if self.namespaces is not None:
            return self.namespaces
        return None if self.qdiscs["clsact"] and self.classifiers["bpf"] else "this kernel has no clsact with cls_bpf"

    def no_program(self) -> str | None:
        """Why no eBPF program can stand there."""
        return self.no_hook() or self.bpf

    def no_detour(self) -> str | None:
        """Why packets can't be led aside from there."""
        return self.no_hook() or (None if self.mirred and self.ifb else "this kernel has no IFB with act_mirred")

    def no_qdisc(self, kind: str) -> str | None:
        return None if self.qdiscs.get(kind) else f"this kernel has no sch_{kind}"


def _load_bare(module: str, *options: str) -> None:
    """Loaded by the kernel itself it would put devices of its own (ifb0, ifb1) into the machine's own namespace."""
    if Path("/sys/module", module).exists() or not rootless.capabilities()["sys_module"]:
        return
    with suppress(OSError, subprocess.TimeoutExpired):
        helper = Path("/proc/sys/kernel/modprobe").read_text(encoding="utf-8").strip()
        if helper:
            words = [helper, module, *options]
            subprocess.run(words, capture_output=True, timeout=LOAD_S, check=False, env=inherited())


def _try_all() -> Kernel:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        return Kernel(namespaces=f"no permission to make network namespaces ({os.strerror(ctypes.get_errno())})")
    with IPRoute() as ip:
        ip.link("add", ifname="try0", kind="veth", peer={"ifname": "try1"})
        index, other = (ip.link_lookup(ifname=name)[0] for name in ("try0", "try1"))
        qdiscs = {kind: _has(partial(_add_qdisc, ip, kind, index)) for kind in QDISCS}
        if qdiscs["clsact"]:
            _has(lambda: ip.tc("add", "clsact", other))
        return Kernel(
            namespaces=None,
            qdiscs=qdiscs,
            classifiers={
                kind: _has(partial(_add_filter, ip, kind, other, prio))
                for prio, kind in enumerate(CLASSIFIERS, start=20)
            },
            mirred=_works(lambda: _add_mirror(ip, other, index)),
            ifb=_works(lambda: ip.link("add", ifname="try2", kind="ifb")),
            bpf=_reason(_load_program),
            tun=_reason(lambda: os.close(os.open("/dev/net/tun", os.O_RDWR))),
            offloads=_reason(lambda: offloads.switch("try0", {"tx-generic-segmentation": False})),
        )


def _add_qdisc(ip: IPRoute, kind: str, index: int) -> None:
    if kind == "clsact":
        ip.tc("add", kind, index)
    else:
        ip.tc("add", kind, index, 0x10000, parent=kinds.TC_H_ROOT, **_QDISC_ARGUMENTS.get(kind, {}))
        ip.tc("del", index=index, parent=kinds.TC_H_ROOT)


_QDISC_ARGUMENTS: dict[str, dict[str, Any]] = {
    "netem": {"netem": {"limit": 10}},
    "prio": {"bands": 2, "default_band": 1},
    "ets": {"bands": 2, "default_band": 1},
    "fq": {"limit": 1000},
    "tbf": {"rate": "1mbit", "burst": 2000, "limit": 10000},
    "bfifo": {"limit": 10000},
}


def _add_filter(ip: IPRoute, kind: str, index: int, prio: int) -> None:
    arguments: dict[str, Any] = {"ops": longer_than(1500), "direct_action": True} if kind == "bpf" else {}
    if kind == "u32":
        arguments = {"protocol": 0x0800, "target": 0x10010, "keys": ["0x0/0x0+0"]}
    ip.tc("add-filter", kind, index, parent=PARENT["ingress"], prio=prio, **arguments)


def _add_mirror(ip: IPRoute, index: int, target: int) -> None:
    action = aside(target, "mirror")
    ip.tc("add-filter", "bpf", index, parent=PARENT["ingress"], prio=8, ops=longer_than(1500), action=action)


def _load_program() -> None:
    code = Assembler()
    code.exit(0)
    os.close(syscalls.load_classifier(code.assemble(), name="try"))
    os.close(syscalls.load_lock_btf(2)[0])


def _has(attempt: Callable[[], object]) -> bool:
    """A kind exists unless the kernel says it knows none of that name; bad arguments are a sign that it does."""
    try:
        attempt()
    except NetlinkError as error:
        return error.code not in (errno.ENOENT, errno.EOPNOTSUPP, errno.EPERM)
    except (KeyError, AttributeError, ValueError, TypeError):
        return False
    return True


def _works(attempt: Callable[[], object]) -> bool:
    return _reason(attempt) is None


def _reason(attempt: Callable[[], object]) -> str | None:
    try:
        attempt()
    except NetlinkError as error:
        return NOT_ALLOWED if error.code == errno.EPERM else str(error.args[-1])
    except PermissionError:
        return NOT_ALLOWED
    except OSError as error:
        return f"{error.strerror or error}"
    return None


def user_namespaces() -> str | None:
    """None if an ordinary user may make one, else why not. Tried in a child, so that nothing sticks."""
    pid = os.fork()
    if pid == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        os._exit(ctypes.get_errno() or 1 if libc.unshare(CLONE_NEWUSER) else 0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        return os.strerror(code)
    restricted = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    if restricted.exists() and restricted.read_text().strip() == "1":
        return "AppArmor restricts them for ordinary users"
    return None


def clock_offset_ns(clock: str = "monotonic") -> int:
    """By how much a clock of ours (or: boottime) is ahead of the kernel's: a time namespace may set it apart."""
    try:
        lines = Path("/proc/self/timens_offsets").read_text(encoding="ascii").splitlines()
    except OSError:  # none there
        return 0
    found = next((line.split() for line in lines if line.startswith(clock)), [clock, "0", "0"])
    return int(found[1]) * 10**9 + int(found[2])
