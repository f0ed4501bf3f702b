"""Servers and clients of the web service on loopback addresses, as processes of their own; no root needed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lossbench.workloads.web.conclude import conclude
from lossbench.workloads.web.options import read_options

HOSTS = ("127.0.0.1", "127.0.0.2")
LIMIT_S = 60


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@dataclass
class Service:
    folder: Path
    port: int = field(default_factory=free_port)
    servers: list[subprocess.Popen[str]] = field(default_factory=list)
    clients: list[subprocess.Popen[str]] = field(default_factory=list)

    def _start(
        self, module: str, role: str, rank: int, options: dict[str, Any], **environment: str
    ) -> subprocess.Popen[str]:
        (self.folder / "records").mkdir(exist_ok=True)
        spec = self.folder / f"{role}-{rank}.json"
        spec.write_text(json.dumps({"port": self.port, **options}))
        known = {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(HOSTS)),
            "LOSSBENCH_ADDRESSES": ",".join(HOSTS),
            "LOSSBENCH_SPEC": str(spec),
            "LOSSBENCH_RECORDS": str(self.folder / "records" / f"{role}-{rank}.jsonl"),
            "LOSSBENCH_ROLE": role,
            "LOSSBENCH_SEED": "3",
        }
        command = [sys.executable, "-m", f"lossbench.workloads.{module}"]
        return subprocess.Popen(
            command,
            env={**os.environ, **known, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def serve(self, **options: Any) -> None:
        self.servers = [self._start("web.server", "server", rank, options) for rank in range(len(HOSTS))]

    def server_alone(self, options: dict[str, Any], **environment: str) -> tuple[int, str]:
        """One that is meant to end by itself."""
        one = self._start("web.server", "server", 0, options, **environment)
        self.servers.append(one)
        said, _ = one.communicate(timeout=LIMIT_S)
        return one.returncode, said

    def ask(self, module: str = "web", **options: Any) -> None:
        self.clients = [self._start(module, "web", rank, options) for rank in range(len(HOSTS))]

    def wait(self) -> list[str]:
        """What the clients printed, once they have ended."""
        return [one.communicate(timeout=LIMIT_S)[0] for one in self.clients]

    def records(self, role: str, kind: str) -> list[dict[str, Any]]:
        lines = [
            line
            for path in sorted((self.folder / "records").glob(f"{role}-*"))
            for line in path.read_text().splitlines()
        ]
        return [record for line in lines if (record := json.loads(line))["kind"] == kind]

    def concluded(self, **options: Any) -> list[dict[str, Any]]:
        return list(conclude(self.folder, "web", read_options({"port": self.port, **options})))

    def close(self) -> None:
        for one in (*self.clients, *self.servers):
            if one.poll() is None:
                one.send_signal(signal.SIGTERM)
            try:
                one.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                one.kill()
                one.communicate()
