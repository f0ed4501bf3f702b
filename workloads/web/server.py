"""The web service of one host: nginx if it is there and comes up, else the built-in server. GET /N answers N bytes.

Options: server ("auto", "nginx", "builtin"), port, bytes and most_bytes (sizes beside those of sizes.csv), congestion
(control of its TCP: cubic, bbr, ...; none: the host's own, as it is when the server starts).
"""

from __future__ import annotations

import errno
import json
import signal
import socket
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lossbench.contract import Door, own_stack
from lossbench.workloads.errors import OptionError, WorkloadError, status_of
from lossbench.workloads.web.http import congestion, nginx
from lossbench.workloads.web.http.builtin import Builtin
from lossbench.workloads.web.options import PORT, Options
from lossbench.workloads.web.sizes import known_sizes

REFLECT = Path("/proc/sys/net/ipv4/tcp_reflect_tos")
CHOICES = ("auto", "nginx", "builtin")


@dataclass(frozen=True)
class Served:
    """Which server answered on how many hosts, with which congestion control, and what readers should know of it."""

    which: dict[str, int]
    congestion: dict[str, int]
    notes: list[str]

    def __str__(self) -> str:
        return _said(self.which)

    def words(self) -> dict[str, str]:
        """Of a row."""
        known = {"server": self.which, "congestion": self.congestion}
        return {name: _said(by_hosts) for name, by_hosts in known.items() if by_hosts}


def _said(by_hosts: dict[str, int]) -> str:
    one = len(by_hosts) == 1
    return ", ".join(name if one else f"{name} on {hosts}" for name, hosts in sorted(by_hosts.items()))


def served(folder: Path) -> Served:
    """As the servers of a run said it themselves."""
    found: dict[str, list[dict[str, Any]]] = {"server": [], "fallback": [], "unmarked": [], "congestion": []}
    for path in sorted((folder / "records").glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):  # cut off by whoever killed it
                record = json.loads(line)
                found.get(str(record.get("kind")), []).append(record)
    which = Counter(str(one["which"]) for one in found["server"])
    control = Counter(str(one["congestion"]) for one in found["server"] if one.get("congestion"))
    notes = [f"The built-in server served, since nginx did not: {why}." for why in _reasons(found["fallback"])]
    if "nginx" in which:
        notes += [f"nginx marked no answers: {why}." for why in _reasons(found["unmarked"])]
    notes += [f"The service's TCP is not as asked for: {why}." for why in _reasons(found["congestion"])]
    return Served(dict(which), dict(control), notes)


def _reasons(records: list[dict[str, Any]]) -> list[str]:
    """The first is enough."""
    return [str(one.get("why", "")).rstrip(".") for one in records[:1]]


class Server:
    def __init__(self, door: Door) -> None:
        self.door = door
        self.port = int(door.options.get("port", PORT))
        self.address = door.addresses[door.rank]
        self.ended = False
        self.asked = str(door.options.get("congestion", ""))
        signal.signal(signal.SIGTERM, self._told)

    def _told(self, *_: object) -> None:
        self.ended = True

    def run(self) -> None:
        which = str(self.door.options.get("server", "auto"))
        if which not in CHOICES:
            raise OptionError(f"web.server: server is one of {', '.join(CHOICES)}, not '{which}'")
        binary = nginx.find() if which != "builtin" else None
        if which == "nginx" and binary is None:
            raise OptionError('web.server: there is no nginx here: apt install nginx-light, or server = "builtin"')
        self._port_is_free()
        self._mark_answers()
        server = None
        if binary is not None:
            server = self._nginx(binary, needed=which == "nginx")
        elif which == "auto":
            self.door.record("fallback", to="builtin", why="there is none here (apt install nginx-light)")
        if server is not None:
            self._watch(server)
        else:
            self._builtin()

    def _mark_answers(self) -> None:
        """As their requests were, whoever serves them; where that can't be, a class sorts them by its ports."""
        if not own_stack():
            self.door.record("unmarked", why="tcp_reflect_tos is the machine's: the builtin server marks by itself")
            return
        try:
            REFLECT.write_text("1")
        except OSError as error:
            self.door.record("unmarked", why=f"tcp_reflect_tos: {error.strerror}")

    def _port_is_free(self) -> None:
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((self.address, self.port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                text = f"port {self.port} of {self.address} is taken: choose another (options.port, of web too)"
                raise WorkloadError(f"web.server: {text}") from None

    def _nginx(self, binary: str, *, needed: bool) -> nginx.Nginx | None:
        """Up and serving; None where it does not come up and another may take its place."""
        own = [int(self.door.options.get(name, Options().bytes)) for name in ("bytes", "most_bytes")]
        sizes = {*known_sizes(), Options().bytes, *own}
        server = None
        try:
            server = nginx.Nginx(binary, self.address, self.port, sizes, kept=self.door.records_path)
            server.wait_until_up()
        except (WorkloadError, OSError) as error:
            if server is not None:
                server.close()
            if needed:
                raise WorkloadError(f'web.server: server = "nginx": {error}') from None
            self.door.record("fallback", to="builtin", why=str(error))
            return None
        return server

    def _watch(self, server: nginx.Nginx) -> None:
        try:
            self._ready("nginx", *congestion.of_process(server.process.pid, self.asked))
            while not self.ended:
                if server.process.poll() is not None:
                    raise WorkloadError(f"nginx ended by itself with status {server.process.returncode}")
                time.sleep(0.1)
        finally:
            server.close()

    def _builtin(self) -> None:
        server = Builtin(self.address, self.port, dscp=self.door.dscp)
        try:
            self._ready("builtin", *congestion.of_socket(server.listener, self.asked))
            server.serve(lambda: self.ended)
        finally:
            server.close()

    def _ready(self, which: str, in_force: str, why: str) -> None:
        """Said before the gate opens: clients try servers before they are ready themselves."""
        if why:
            self.door.record("congestion", why=why)
        self.door.record("server", which=which, port=self.port, congestion=in_force)
        self.door.record("ready")


def main() -> int:
    return status_of(lambda: Server(Door.from_environment()).run())


if __name__ == "__main__":
    raise SystemExit(main())
