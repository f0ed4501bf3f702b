"""One end of a wire between two guests: `python -m tests.nic.pair_end END`. Prints one JSON object.

1 puts netem on its eth0, sends, takes it away, is killed a few times; 2 receives and counts. They speak over TCP port
53, which is never touched."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from lossbench.net.nic import snapshot
from tests.nic.wire import COMMAND, kill, until

CONTROL, PORT = 53, 29444
PACKETS = 20_000
FOR_S = 10.0
PEER = "10.99.0.2"


def receive() -> dict[str, Any]:
    """Counts until it is asked for its count, as often as it is."""
    got: set[int] = set()
    data = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    data.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)
    data.bind(("", PORT))

    def collect() -> None:
        while True:
            got.add(int.from_bytes(data.recv(2048)[:4], "big"))

    threading.Thread(target=collect, daemon=True).start()
    with socket.create_server(("", CONTROL)) as server:
        control, _ = server.accept()
        with control, control.makefile("rw") as lines:
            for line in lines:
                if line.startswith("bye"):
                    break
                time.sleep(2.0)
                lines.write(f"{len(got)}\n")
                lines.flush()
    return {"received": len(got)}


def lossbench(*arguments: str) -> str:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def seen() -> tuple[Any, str]:
    """By us, and by other people's tools."""
    commands = [["tc", what, "show", "dev", "eth0"] for what in ("qdisc", "filter")]
    said = "".join(subprocess.run(c, capture_output=True, text=True).stdout for c in commands)
    return snapshot.of(socket.if_nametoindex("eth0")), said


def send(drills: int) -> dict[str, Any]:
    control = _connected()
    with control, control.makefile("rw") as lines:
        before = seen()
        lossbench("nic", "apply", "eth0", "--profile", "loss_5", "--backend", "netem", "--port", str(PORT))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as data:
            data.connect((PEER, PORT))
            for number in range(PACKETS):
                data.send(number.to_bytes(4, "big").ljust(300, b"."))
                if number % 50 == 49:
                    time.sleep(0.01)
        lines.write("count\n")
        lines.flush()
        received = int(lines.readline())
        (nic,) = json.loads(lossbench("nic", "show", "eth0", "--json"))["nics"]
        lossbench("nic", "revert", "eth0")
        out = {"backend": nic["backend"], **nic["sides"]["egress"], "received": received, "same": seen() == before}
        out["drills"] = [drill(before, chance) for chance in map(random.Random, range(drills))]
        out["root"] = before[1].split("\n")[0]
        lines.write("bye\n")
        lines.flush()
        return out


def _connected() -> socket.socket:
    for _ in range(300):
        with suppress(OSError):
            return socket.create_connection((PEER, CONTROL), timeout=5)
        time.sleep(1)
    raise SystemExit("the other guest does not answer")


def drill(before: Any, chance: random.Random) -> dict[str, Any]:
    """Kill the maker or a watchdog at some moment; how long until all is as before, counted from when that is due: the
    kill, or the end of what was made all the same."""
    victim, moment = chance.choice(["maker", "watchdog"]), chance.uniform(0, 30)
    maker = subprocess.Popen([*COMMAND, "nic", "apply", "eth0", "--profile", "loss_5", "--for", f"{FOR_S:g}s"])
    start = time.monotonic()

    def comes() -> bool:
        late = time.monotonic() - start > moment
        return late or maker.poll() is not None or (victim == "watchdog" and bool(_watchdogs()))

    until(comes, seconds=60)
    for pid in [maker.pid] if victim == "maker" else _watchdogs()[:1]:
        kill(pid, signal.SIGKILL)
    due = time.monotonic() if maker.wait() else time.monotonic() + FOR_S
    back = until(lambda: seen() == before, seconds=120)
    return {"victim": victim, "after_s": round(moment, 2), "back": back, "s": round(time.monotonic() - due, 2)}


def _watchdogs() -> list[int]:
    out = []
    for entry in os.listdir("/proc"):
        with suppress(OSError):
            if entry.isdigit() and b"nic.watchdog" in Path(f"/proc/{entry}/cmdline").read_bytes():
                out.append(int(entry))
    return out


if __name__ == "__main__":
    print(json.dumps(send(int(sys.argv[2])) if sys.argv[1] == "1" else receive()))
