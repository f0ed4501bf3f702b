"""A load generator of the user's own as the client of every host: wrk, h2load, or whatever prints as they do.

Options: command (a list; {server}, {port}, {bytes} and {seconds} are filled in), reads ("wrk", "h2load"), port, bytes,
seconds. Both are closed loops: they wait with the service, so the tail is understated.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from typing import Any

from lossbench.contract import Door
from lossbench.workloads.errors import OptionError, WorkloadError, status_of
from lossbench.workloads.web.checks import FAILED_SHARE
from lossbench.workloads.web.options import PORT, Options

COMMANDS = {
    "wrk": ["wrk", "-t1", "-c4", "-d{seconds}s", "--latency", "http://{server}:{port}/{bytes}"],
    "h2load": ["h2load", "--h1", "-t1", "-c4", "-D{seconds}", "http://{server}:{port}/{bytes}"],
}
NOTE = "Closed loop: clients wait with the service, its tail is understated."
_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4}
_TIME = r"([\d.]+)(us|ms|s|m)\b"


def _ms(found: re.Match[str] | None) -> float | None:
    return float(found[1]) * _MS[found[2]] if found else None


def read_wrk(text: str) -> dict[str, Any]:
    out: dict[str, Any] = {"mean_ms": _ms(re.search(rf"Latency +{_TIME}", text))}
    for q in ("50", "99"):
        out[f"p{q}_ms"] = _ms(re.search(rf"^ +{q}% +{_TIME}", text, re.MULTILINE))
    done, rate = re.search(r"(\d+) requests in", text), re.search(r"Requests/sec: +([\d.]+)", text)
    errors = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", text)
    out |= {"n": int(done[1]) if done else None, "rate": float(rate[1]) if rate else None}
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    out["failed"] = (sum(map(int, errors.groups())) if errors else 0) + (int(refused[1]) if refused else 0)
    return out


def read_h2load(text: str) -> dict[str, Any]:
    times = re.search(rf"time for request: +{_TIME} +{_TIME} +{_TIME}", text)
    done = re.search(r"requests: \d+ total, \d+ started, \d+ done, (\d+) succeeded, (\d+) failed", text)
    rate = re.search(r"finished in [^,]+, ([\d.]+) req/s", text)
    return {
        "mean_ms": float(times[5]) * _MS[times[6]] if times else None,
        "max_ms": float(times[3]) * _MS[times[4]] if times else None,
        "n": int(done[1]) if done else None,
        "rate": float(rate[1]) if rate else None,
        "failed": int(done[2]) if done else None,
    }


READERS: dict[str, Callable[[str], dict[str, Any]]] = {"wrk": read_wrk, "h2load": read_h2load}


class External:
    def __init__(self, door: Door) -> None:
        self.door = door
        self.reads = str(door.options.get("reads", "wrk"))
        if self.reads not in READERS:
            raise OptionError(f"web.external: reads is one of {', '.join(READERS)}, not '{self.reads}'")
        server = door.addresses[(door.rank + 1) % door.world_size]
        names = {
            "server": f"[{server}]" if ":" in server else server,
            "port": door.options.get("port", PORT),
            "bytes": door.options.get("bytes", Options().bytes),
            "seconds": door.options.get("seconds", 10),
        }
        asked = door.options.get("command") or COMMANDS[self.reads]
        self.command = [str(part).format(**names) for part in asked]
        if shutil.which(self.command[0]) is None:
            raise OptionError(f"web.external: no such program: {self.command[0]} (apt install wrk, or nghttp2-client)")

    def run(self) -> None:
        self.door.ready()
        process = subprocess.Popen(
            self.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGINT))
        said, _ = process.communicate()
        print(said, flush=True)
        found = READERS[self.reads](said)
        if process.returncode or found.get("n") is None:
            last = (said.strip().splitlines() or ["it said nothing"])[-1]
            raise WorkloadError(f"{self.command[0]} ended with status {process.returncode}: {last}")
        if not found["n"]:
            raise WorkloadError(f"{self.command[0]}: none of its requests was answered as asked")
        failed = found.get("failed") or 0
        if failed > FAILED_SHARE * found["n"]:
            self.door.record("doubt", text=f"{failed} requests of {self.command[0]} failed, {found['n']} were answered")
        known = {name: value for name, value in found.items() if value is not None}
        self.door.record("summary", **{name: known[name] for name in ("n", "rate", "failed") if name in known})
        if self.door.rank == 0:
            row = {"client": f"{self.reads} on the first host", **known}
            self.door.record("row", **row, shown=list(row), note=NOTE)


def main() -> int:
    return status_of(lambda: External(Door.from_environment()).run())


if __name__ == "__main__":
    raise SystemExit(main())
