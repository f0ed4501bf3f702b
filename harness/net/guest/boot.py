"""Boots the guest, runs one command in it, brings output and exit status back."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from lossbench.errors import NotAbleError, RunError
from lossbench.files import Lock
from lossbench.net.guest.recipe import Boot, Image, qemu_command
from lossbench.processes import die_with_parent, inherited

READY = "guest: ready"
RUNS = "runs"  # folders of guests that are up, each locked by its lossbench
KVM_READY_S, READY_S = 15.0, 240.0
CONSOLE_LINES = 25
TIMED_OUT = 124
LEFT_OUT = ("LD_LIBRARY_PATH", "LD_PRELOAD", "TMPDIR")


class BootFailedError(RunError):
    """The guest never came up."""


def run(
    image: Image,
    command: list[str],
    *,
    writable: Path | None = None,
    timeout_s: float | None = None,
    instruction_clock: bool = False,
    interactive: bool = False,
    cpus: int = 2,
    wire: Path | None = None,
    end: int = 1,
) -> int:
    """The command's own exit status; 124 if it ran out of time. A boot that fails is tried once more (without KVM if it
    was used), then fails with the console's last lines."""
    kvm = os.access("/dev/kvm", os.W_OK) and not instruction_clock and not (image.cache / "no-kvm").exists()
    boot = Boot(
        folder=Path("/"),
        cpus=cpus,
        writable=writable,
        kvm=kvm,
        instruction_clock=instruction_clock,
        interactive=interactive,
        now=int(time.time()),
        wire=wire,
        end=end,
    )
    try:
        return _once(image, boot, command, timeout_s)
    except BootFailedError as error:
        print(f"lossbench: {error}\nlossbench: trying once more", file=sys.stderr)
    if kvm:
        # There are machines whose /dev/kvm opens and never runs a guest; remember it.
        (image.cache / "no-kvm").touch()
        boot = replace(boot, kvm=False)
    return _once(image, boot, command, timeout_s)


def _once(image: Image, boot: Boot, command: list[str], timeout_s: float | None) -> int:
    sweep(image.cache)
    runs = image.cache / RUNS
    runs.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=runs))
    mine = None
    try:
        mine = Lock.take(folder / "lock")
        boot = replace(boot, folder=folder)
        text = script(command, instruction_clock=boot.instruction_clock)
        (folder / "script").write_bytes(text.encode("utf-8", "surrogateescape"))  # as the environment has it
        for name in ("console", "status"):
            (folder / name).touch()
        for name in ("out", "err"):
            os.mkfifo(folder / name)
        ends = (("out", sys.stdout), ("err", sys.stderr))
        readers = [threading.Thread(target=_copy, args=(folder / n, stream), daemon=True) for n, stream in ends]
        for reader in readers:
            reader.start()
        return _watch(_start(image, boot, folder), boot, folder, readers, timeout_s)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if mine is not None:
            mine.release()


def sweep(cache: Path) -> list[Path]:
    """Remove what a killed lossbench left: folders whose lock nobody holds. Its qemu died with it."""
    return [folder for folder in (cache / RUNS).glob("*-*") if _swept(folder)]


def _swept(folder: Path) -> bool:
    try:
        # Killed before it could lock it; the pid is only a second opinion.
        old = time.time() - folder.stat().st_mtime > READY_S
    except FileNotFoundError:  # another one was faster
        return False
    nobody = old and not Path("/proc", folder.name.partition("-")[0]).exists()
    lock = Lock.take(folder / "lock", make=nobody)
    if lock is None:
        return False
    shutil.rmtree(folder, ignore_errors=True)
    lock.release()
    return True


def script(command: list[str], *, instruction_clock: bool = False) -> str:
    """The same folder and environment as here; `lossbench` is found even if its venv is not activated."""
    lines = [
        f"export {name}={shlex.quote(value)}"
        for name, value in os.environ.items()
        if name.isidentifier() and name not in LEFT_OUT
    ]
    lines.append(f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"')
    lines.append(f"cd {shlex.quote(str(Path.cwd()))} || exit 125")
    if instruction_clock:
        lines.append("export LOSSBENCH_CLOCK=instructions")
    lines.append(f"exec {shlex.join(command or ['/bin/bash', '-i'])}")
    return "\n".join(lines) + "\n"


def _start(image: Image, boot: Boot, folder: Path) -> subprocess.Popen[bytes]:
    environment = inherited()
    if image.libraries:
        environment["LD_LIBRARY_PATH"] = image.libraries
    shim = image.cache / "icache.so"
    if shim.exists():
        environment["LD_PRELOAD"] = str(shim)
    stdin = None if boot.interactive else subprocess.DEVNULL
    with open(folder / "qemu", "wb") as errors:
        try:
            return subprocess.Popen(
                qemu_command(image, boot), stdin=stdin, stderr=errors, env=environment, preexec_fn=die_with_parent
            )
        except OSError as error:
            raise NotAbleError(f"{image.qemu} can't be started ({error.strerror})") from None


def _copy(source: Path, target: TextIO) -> None:
    """Bytes as they come, until qemu closes its end."""
    stream = target.buffer
    with open(source, "rb", buffering=0) as file:
        while data := file.read(65536):
            with suppress(BrokenPipeError):  # nobody listens any more; the guest must not stall for that
                stream.write(data)
                stream.flush()


def _watch(
    process: subprocess.Popen[bytes], boot: Boot, folder: Path, readers: list[threading.Thread], timeout_s: float | None
) -> int:
    start, ready = time.monotonic(), False
    limit = KVM_READY_S if boot.kvm else READY_S
    problem = ""
    try:
        while process.poll() is None:
            elapsed = time.monotonic() - start
            ready = ready or READY in (folder / "console").read_text(errors="replace")
            if not ready and elapsed > limit:
                problem = f"the guest did not come up within {limit:.0f} s"
                break
            if timeout_s is not None and elapsed > timeout_s:
                print(f"lossbench: the guest was ended after {timeout_s:g} s", file=sys.stderr)
                return TIMED_OUT
            time.sleep(0.05)
    finally:
        _end(process, folder, readers)
    status = (folder / "status").read_text().strip()
    if status.isdigit():
        return int(status)
    # A command that has begun is not begun again.
    kind = RunError if ready else BootFailedError
    raise kind(f"{problem or 'the guest ended without a status'}; its console ended with:\n{_last_words(folder)}")


def _end(process: subprocess.Popen[bytes], folder: Path, readers: list[threading.Thread]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
    for name in ("out", "err"):  # a qemu that never opened its end would leave its reader waiting
        descriptor = os.open(folder / name, os.O_RDWR | os.O_NONBLOCK)
        threading.Timer(0.2, os.close, [descriptor]).start()
    for reader in readers:
        reader.join(timeout=5)


def _last_words(folder: Path) -> str:
    text = (folder / "console").read_text(errors="replace") + (folder / "qemu").read_text(errors="replace")
    return "\n".join(f"  | {line}" for line in text.splitlines()[-CONSOLE_LINES:]) or "  | (nothing)"
