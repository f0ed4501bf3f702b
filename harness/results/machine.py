"""What this machine is: the facts that stand beside every result. Reads files, asks nothing of the kernel."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from lossbench.processes import inherited, which

TOOLS = (
    "ip",
    "tc",
    "ethtool",
    "iperf3",
    "tcpdump",
    "unshare",
    "qemu-system-x86_64",
    "qemu-system-aarch64",
    "nvidia-smi",
)
PACKAGES = ("pyroute2", "scapy", "torch", "typer", "rich", "pydantic", "numpy")


@lru_cache(maxsize=1)
def gpus() -> list[str]:
    if which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, env=inherited())
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


def versions() -> dict[str, str]:
    out = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            out[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            out[name] = "missing"
    return out


def facts() -> dict[str, Any]:
    """What a manifest says of the machine; cheap."""
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "cpu": _cpu_name(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "distribution": _distribution(),
        "versions": versions(),
        **tcp(),
        "rmem_max": _read("/proc/sys/net/core/rmem_max"),
        "netdev_max_backlog": _read("/proc/sys/net/core/netdev_max_backlog"),
    }


def tcp() -> dict[str, str]:
    """As whoever is in this network stack finds it."""
    return {
        "congestion_control": _read("/proc/sys/net/ipv4/tcp_congestion_control"),
        "congestion_controls": _read("/proc/sys/net/ipv4/tcp_available_congestion_control"),
    }


def tcp_in_words(known: Mapping[str, Any]) -> str:
    """bbr, which hardly slows down for a few percent of loss (also here: cubic, reno); empty where nobody knows."""
    mine = str(known.get("congestion_control") or "")
    others = ", ".join(one for one in str(known.get("congestion_controls") or "").split() if one != mine)
    slow = ", which hardly slows down for a few percent of loss" if mine.startswith("bbr") else ""
    return f"{mine}{slow}{f' (also here: {others})' if others else ''}" if mine else ""


def _cpu_name() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith(("model name", "CPU part")):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def _distribution() -> str:
    for line in _read("/etc/os-release").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.split("=", 1)[1].strip('"')
    return ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def tools() -> dict[str, str | None]:
    return {name: which(name) for name in TOOLS}
