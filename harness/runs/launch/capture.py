"""What a host's data link carried, as a file that Wireshark and tcpdump open: the beginning of every packet, up to so
many. A process of its own in every host; what it could not keep up with it says itself."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lossbench.errors import RunError
from lossbench.net.host.place import Place
from lossbench.processes import PACKAGE, Running, inherited
from lossbench.results.folders import RunFolder
from lossbench.results.naming import counted
from lossbench.spec.experiment import Experiment

BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from lossbench.runs.launch import capture; capture.main()"
ETH_P_ALL, SOL_PACKET, PACKET_STATISTICS, SO_TIMESTAMPNS = 0x0003, 263, 6, 35
BUFFER = 32 << 20
HEADER = struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1)  # nanoseconds, Ethernet
WRITE_AT = 1 << 20
READY_S, DRAIN_S = 20.0, 1.0


def start(experiment: Experiment, place_of: Callable[[str], Place], store: RunFolder, hosts: Path) -> list[Running]:
    """One for each host, if it was asked for."""
    asked = experiment.capture
    if not asked.packets:
        return []
    folder = store.way / "captures"
    folder.mkdir(exist_ok=True)
    out: list[Running] = []
    for host in experiment.topology.all_hosts():
        path = folder / f"{host.name}.pcap"
        words = [str(path), host.interface, str(asked.packets), str(asked.bytes)]
        with open(path.with_suffix(".log"), "wb") as log:
            command = [sys.executable, "-E", "-P", "-c", BOOT, str(PACKAGE), *words]
            place = place_of(host.name)
            out.append(place.start(command, environment=inherited(), output=log, hosts_path=hosts))
        _listening(path, out[-1])
    return out


def faults(folder: Path) -> list[str]:
    """Of a run that has ended: what its captures do not hold, in words."""
    out = []
    for path in sorted((folder / "captures").glob("*.pcap")):
        try:
            about = json.loads(path.with_suffix(".json").read_text(encoding="ascii"))
        except (OSError, ValueError):
            out.append(f"the capture of {path.stem} was cut short ({path.with_suffix('.log').name})")
            continue
        if about["missed"]:
            out.append(f"the capture of {path.stem} misses {counted(about['missed'], 'packet')}: it could not keep up")
        if about["full"]:
            out.append(f"the capture of {path.stem} holds the first {counted(about['packets'], 'packet')} only")
    return out


def _listening(path: Path, process: Running) -> None:
    """Before anything is sent."""
    deadline = time.monotonic() + READY_S
    while not path.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            said = path.with_suffix(".log").read_text(errors="replace").strip().splitlines()
            raise RunError(f"packets can't be captured: {said[-1] if said else 'it did not begin in time'}")
        time.sleep(0.01)


def main() -> None:
    path, interface, packets, kept = Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
    os.nice(5)
    ends = math.inf

    def end(*_: object) -> None:
        nonlocal ends
        ends = time.monotonic() + DRAIN_S

    signal.signal(signal.SIGTERM, end)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        link.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        link.bind((interface, ETH_P_ALL))
        link.settimeout(0.2)
        with open(path, "wb", buffering=WRITE_AT) as file:
            file.write(HEADER)
            count = 0
            while count < packets and time.monotonic() < ends:
                try:
                    data, extra, _, _ = link.recvmsg(kept, 64)
                except TimeoutError:
                    if ends < math.inf:
                        break
                    continue
                file.write(_packet(data, extra, kept))
                count += 1
        _, missed = struct.unpack("II", link.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
    about = {"packets": count, "missed": missed, "full": count >= packets, "bytes_of_each": kept}
    path.with_suffix(".json").write_text(json.dumps(about) + "\n", encoding="ascii")


def _packet(data: bytes, extra: list[tuple[int, int, bytes]], kept: int) -> bytes:
    seconds, nanoseconds = struct.unpack("ll", extra[0][2][:16]) if extra else (0, 0)
    return struct.pack("<IIII", seconds, nanoseconds, min(len(data), kept), max(len(data), _length(data))) + data[:kept]


def _length(data: bytes) -> int:
    """On the wire, by the IP header: the kernel hands out no more than was asked for."""
    if data[12:14] == b"\x08\x00" and len(data) >= 18:
        return 14 + int(struct.unpack("!H", data[16:18])[0])
    if data[12:14] == b"\x86\xdd" and len(data) >= 20:
        return 54 + int(struct.unpack("!H", data[18:20])[0])
    return len(data)
