"""nginx in a host: a configuration and files of its own, on a file system that vanishes with it, without privileges."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from lossbench.workloads.errors import WorkloadError

CLONE_NEWNS = 0x00020000
MS_PRIVATE_RECURSIVE = 0x4000 | 0x40000
PR_SET_PDEATHSIG = 1
NOBODY = 65534
UP_S = 20.0
SPARE = ("/media", "/mnt", "/srv")
PATHS = "/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin"
CONFIGURATION = """
daemon off;
master_process off;
{user}
pid {folder}/pid;
error_log stderr warn;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  sendfile on;
  tcp_nopush on;
  keepalive_requests 100000000;
  keepalive_timeout 1h;
  default_type application/octet-stream;
  {temporary}
  server {{ listen {listen} backlog=1024; root {folder}/files; }}
}}
"""
TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")

_libc = ctypes.CDLL(None, use_errno=True)


def find() -> str | None:
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:{PATHS}")


class Nginx:
    def __init__(self, binary: str, address: str, port: int, sizes: Iterable[int], *, kept: str) -> None:
        self.folder = _private_folder(kept)
        files = self.folder / "files"
        files.mkdir()
        for size in sizes:
            with open(files / str(size), "wb") as file:
                file.truncate(size)
        listen = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        temporary = " ".join(f"{name}_temp_path {self.folder}/{name};" for name in TEMPORARY)
        user = "user root root;" if os.geteuid() == 0 and not nobody_is_here() else ""
        text = CONFIGURATION.format(folder=self.folder, listen=listen, temporary=temporary, user=user)
        (self.folder / "nginx.conf").write_text(text, encoding="utf-8")
        command = [binary, "-e", "stderr", "-p", str(self.folder), "-c", str(self.folder / "nginx.conf")]
        self._log = open(self.folder / "log", "w+b")  # noqa: SIM115 - as long as the server
        try:
            self.process = self._start(command)
        except OSError:
            self._forget()
            raise

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        """As nobody, where that can be; it ends with us."""
        with_us = lambda: _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # noqa: E731
        if os.geteuid() == 0 and nobody_is_here():
            for path in (self.folder, *self.folder.iterdir()):
                os.chown(path, NOBODY, NOBODY)
            return subprocess.Popen(
                command, stderr=self._log, user=NOBODY, group=NOBODY, extra_groups=[], preexec_fn=with_us
            )
        return subprocess.Popen(command, stderr=self._log, preexec_fn=with_us)

    def wait_until_up(self) -> None:
        limit = time.monotonic() + UP_S
        while not (self.folder / "pid").exists() or not (self.folder / "pid").read_text().strip():
            if self.process.poll() is not None or time.monotonic() > limit:
                self._log.seek(0)
                said = self._log.read().decode(errors="replace").strip().splitlines()
                old = " (1.19.5 or newer is needed)" if any("invalid option" in line for line in said) else ""
                raise WorkloadError(f"nginx did not come up: {said[-1] if said else 'it said nothing'}{old}")
            time.sleep(0.02)

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._forget()

    def _forget(self) -> None:
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _private_folder(kept: str) -> Path:
    """On a file system that only this process and its children see, and that goes with them, however they end. It
    hides a folder that nobody needs here; `kept` must stay visible."""
    spare = next((one for one in SPARE if Path(one).is_dir() and not kept.startswith(f"{one}/")), None)
    if spare is not None and _libc.unshare(CLONE_NEWNS) == 0:
        _libc.mount(b"none", b"/", None, MS_PRIVATE_RECURSIVE, None)
        if _libc.mount(b"tmpfs", spare.encode(), b"tmpfs", 0, b"mode=1777") == 0:
            return Path(tempfile.mkdtemp(prefix="lossbench-web-", dir=spare))
    return Path(tempfile.mkdtemp(prefix="lossbench-web-"))


def nobody_is_here() -> bool:
    """Not in an ordinary user's namespace: there root is that user, and nobody else can be."""
    for kind in ("uid", "gid"):
        lines = Path(f"/proc/self/{kind}_map").read_text(encoding="ascii").splitlines()
        spans = [[int(number) for number in line.split()] for line in lines]  # first here, first outside, how many
        if not any(first <= NOBODY < first + count for first, _, count in spans):
            return False
    return True
