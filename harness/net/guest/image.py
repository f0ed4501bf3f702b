"""Prepares the guest: qemu, busybox and a stock kernel from Debian by package name, unpacked into a cache folder.

Nothing is installed, /boot is not touched, no root is needed."""

from __future__ import annotations

import fcntl
import lzma
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lossbench.errors import NotAbleError
from lossbench.net.guest.recipe import Architecture, Image, here
from lossbench.processes import inherited, which

ICACHE_LINE = 187  # glibc's _SC_LEVEL1_ICACHE_LINESIZE; Python has no name for it
VERSION = "1"  # of what lies in the cache: raise it when the recipe changes
# Modules the initramfs loads before anything else is there.
EARLY = ("virtio_pci", "virtio_console", "overlay", "9pnet_virtio", "9p")
# Parts of the kernel's modules that a guest without hardware can use.
KEPT = (
    "kernel/net/",
    "kernel/lib/",
    "kernel/crypto/",
    "kernel/arch/",
    "kernel/fs/9p/",
    "kernel/fs/overlayfs/",
    "kernel/fs/netfs/",
    "kernel/fs/fscache/",
    "kernel/drivers/virtio/",
    "kernel/drivers/char/",
    "kernel/drivers/ptp/",
)
KEPT_DRIVERS = re.compile(r"kernel/drivers/net/[^/]+\.ko")  # veth, ifb, tun, dummy; no hardware

PLAIN_PATH = r"[\w./+@:~-]+"  # what passes qemu's options and the kernel's command line unharmed

Progress = Callable[[str], None]


def cache_folder() -> Path:
    base = os.environ.get("LOSSBENCH_CACHE") or os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "lossbench" / "guest"


def prepare(progress: Progress) -> Image:
    """The image, made now if the cache does not hold it."""
    architecture, cache = here(), cache_folder()
    with _locked(cache):
        if not _complete(cache):
            _fetch(architecture, cache, progress)
            _unpack_modules(cache, progress)
            _build_shim(architecture, cache)
            (cache / "version").write_text(VERSION)
        _write_initramfs(cache)  # its scripts may be newer than the cache
    return _image(architecture, cache)


def _complete(cache: Path) -> bool:
    return (cache / "version").exists() and (cache / "version").read_text() == VERSION


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """Two preparations at once take turns."""
    if not re.fullmatch(PLAIN_PATH, str(cache)):
        raise NotAbleError(f"'{cache}' has characters that qemu can't take", next_step="set LOSSBENCH_CACHE")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = open(cache / "lock", "w")  # noqa: SIM115 - held while we prepare
    except OSError as error:
        raise NotAbleError(f"{cache} can't be used ({error})", next_step="set LOSSBENCH_CACHE") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(*command: str, cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False, env=inherited(LC_ALL="C"))
    except FileNotFoundError:
        raise NotAbleError(
            f"no {command[0]}: the guest is made from Debian's packages", next_step="use a Debian machine"
        ) from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise NotAbleError(f"{' '.join(command[:3])} failed: {last}", next_step="apt-get update, then try again")
    return done.stdout


def _fetch(architecture: Architecture, cache: Path, progress: Progress) -> None:
    """Download and unpack; a half-made cache is made anew."""
    for part in ("debs", "root", "kernel"):
        shutil.rmtree(cache / part, ignore_errors=True)
    (cache / "debs" / "partial").mkdir(parents=True)
    progress("downloading qemu, busybox and a kernel (about 85 MB)")
    kernel = _kernel_package(architecture)
    try:
        _download(architecture, cache, kernel)
    except NotAbleError:  # lists that are older than what the archive still holds
        subprocess.run(["apt-get", "update", "-qq"], capture_output=True, check=False, env=inherited())
        _download(architecture, cache, _kernel_package(architecture))
    progress("unpacking")
    for package in (cache / "debs").glob("*.deb"):
        place = cache / ("kernel" if package.name.startswith("linux-image-") else "root")
        place.mkdir(exist_ok=True)
        _run("dpkg", "-x", str(package), str(place))
    shutil.rmtree(cache / "debs")


def _download(architecture: Architecture, cache: Path, kernel: str) -> None:
    _run(
        "apt-get",
        "install",
        "-y",
        "-qq",
        "--reinstall",
        "--no-install-recommends",
        "--download-only",
        "-o",
        "Debug::NoLocking=1",
        "-o",
        f"Dir::Cache::archives={cache / 'debs'}",
        architecture.package,
        "busybox-static",
    )
    _run("apt-get", "download", "-qq", kernel, cwd=cache / "debs")


def _kernel_package(architecture: Architecture) -> str:
    """The real package behind linux-image-amd64; refreshes apt's lists if they are empty."""
    meta = f"linux-image-{architecture.debian}"
    pattern = re.compile(r"Depends: (linux-image-\S+)")
    found = pattern.search(_run("apt-cache", "depends", "--important", meta)) if _known(meta) else None
    if found is None:
        subprocess.run(["apt-get", "update", "-qq"], capture_output=True, check=False, env=inherited())
        found = pattern.search(_run("apt-cache", "depends", "--important", meta))
    if found is None:
        raise NotAbleError(f"apt knows no {meta}", next_step="apt-get update")
    return found[1]


def _known(package: str) -> bool:
    try:
        return bool(_run("apt-cache", "show", package))
    except NotAbleError:
        if which("apt-cache") is None:
            raise
        return False


def _version(cache: Path) -> str:
    (image,) = (cache / "kernel" / "boot").glob("vmlinuz-*")
    return image.name.removeprefix("vmlinuz-")


def _unpack_modules(cache: Path, progress: Progress) -> None:
    """Keep what a guest can use, uncompressed, with an index that modprobe reads."""
    progress("indexing modules")
    tree = next(p for p in (cache / "kernel/lib/modules", cache / "kernel/usr/lib/modules") if p.exists())
    modules = tree / _version(cache)
    for path in list(modules.rglob("*.ko*")):
        name = str(path.relative_to(modules))
        if not (name.startswith(KEPT) or KEPT_DRIVERS.match(name)):
            path.unlink()
        elif path.suffix == ".xz":
            path.with_suffix("").write_bytes(lzma.decompress(path.read_bytes()))
            path.unlink()
    target = cache / "kernel/lib/modules"
    if tree != target:
        target.parent.mkdir(exist_ok=True)
        tree.rename(target)
    _run(str(_busybox(cache)), "depmod", "-b", str(cache / "kernel"), _version(cache))


def _build_shim(architecture: Architecture, cache: Path) -> None:
    """Only where it helps (see icache.c) and a compiler is there; without it the guest is slower, not wrong."""
    if architecture.name != "aarch64" or os.sysconf(ICACHE_LINE) <= 256 or not which("cc"):
        return
    source = Path(__file__).resolve().parent / "icache.c"
    with suppress(NotAbleError):
        _run("cc", "-O2", "-shared", "-fPIC", "-o", str(cache / "icache.so"), str(source))


def _busybox(cache: Path) -> Path:
    return next(p for p in (cache / "root/bin/busybox", cache / "root/usr/bin/busybox") if p.exists())


def _early_modules(cache: Path) -> list[Path]:
    """In loading order, with what they need."""
    modules = cache / "kernel/lib/modules" / _version(cache)
    needs = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        module, _, rest = line.partition(":")
        needs[Path(module).stem.replace("-", "_")] = [*reversed(rest.split()), module]
    out: list[Path] = []
    for name in EARLY:
        for module in needs.get(name, []):  # not there: built into the kernel
            if modules / module not in out:
                out.append(modules / module)
    return out


def _write_initramfs(cache: Path) -> None:
    here_folder = Path(__file__).resolve().parent
    early = _early_modules(cache)
    files: dict[str, bytes] = {"bin/busybox": _busybox(cache).read_bytes()}
    files["init"] = (here_folder / "init.sh").read_bytes()
    files["main.sh"] = (here_folder / "main.sh").read_bytes()
    files["load"] = "\n".join(path.name for path in early).encode()
    files.update({path.name: path.read_bytes() for path in early})
    folders = ["bin", "proc", "sys", "dev", "lower", "upper", "new"]
    data, target = cpio(folders, files), cache / "initramfs"
    if not target.exists() or target.read_bytes() != data:  # another guest may be reading it: never half a file
        (cache / "initramfs.new").write_bytes(data)
        (cache / "initramfs.new").replace(target)


def cpio(folders: list[str], files: dict[str, bytes]) -> bytes:
    """A `newc` archive, the format the kernel unpacks; files are executable."""

    def entry(number: int, name: str, mode: int, data: bytes) -> bytes:
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
        head = b"070701" + b"".join(b"%08X" % f for f in fields) + name.encode() + b"\0"
        return head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4)

    out = b"".join(entry(n + 1, name, stat.S_IFDIR | 0o755, b"") for n, name in enumerate(folders))
    for number, (name, data) in enumerate(files.items(), start=len(folders) + 1):
        out += entry(number, name, stat.S_IFREG | 0o755, data)
    return out + entry(0, "TRAILER!!!", 0, b"")


def _image(architecture: Architecture, cache: Path) -> Image:
    unpacked = cache / "root/usr/bin" / architecture.qemu
    installed = which(architecture.qemu)
    version = _version(cache)
    ours = installed is None  # what apt downloaded beside an installed one lacks what was installed: its modules
    if ours and not unpacked.exists():
        raise NotAbleError(f"{architecture.qemu} is missing from the cache", next_step=f"remove {cache} and try again")
    libraries = [cache / "root" / prefix / f"{architecture.name}-linux-gnu" for prefix in ("usr/lib", "lib")]
    share = cache / "root/usr/share"
    return Image(
        cache=cache,
        architecture=architecture,
        qemu=str(unpacked) if ours else str(installed),
        libraries=":".join(str(p) for p in libraries) if ours else "",
        firmware=tuple(str(share / name) for name in ("qemu", "seabios") if ours and (share / name).exists()),
        kernel=cache / "kernel/boot" / f"vmlinuz-{version}",
        initramfs=cache / "initramfs",
        modules=cache / "kernel/lib/modules" / version,
    )
