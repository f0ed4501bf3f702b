"""What differs between architectures, and the command lines. Pure: nothing is started here."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from lossbench.errors import NotAbleError


@dataclass(frozen=True, kw_only=True)
class Architecture:
    name: str
    debian: str
    package: str
    console: str
    machine: str
    cpu: str
    kvm_machine: str

    @property
    def qemu(self) -> str:
        return f"qemu-system-{self.name}"


ARCHITECTURES = {
    "x86_64": Architecture(
        name="x86_64",
        debian="amd64",
        package="qemu-system-x86",
        console="ttyS0",
        machine="q35",
        cpu="max",
        kvm_machine="q35",
    ),
    # Never plain `max` on aarch64: emulated pointer authentication is three to four times slower.
    "aarch64": Architecture(
        name="aarch64",
        debian="arm64",
        package="qemu-system-arm",
        console="ttyAMA0",
        machine="virt,gic-version=3",
        cpu="neoverse-n1",
        kvm_machine="virt,gic-version=host",
    ),
}


def here() -> Architecture:
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        raise NotAbleError(f"no recipe for a guest on {machine}", next_step=f"works on {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[machine]


@dataclass(frozen=True, kw_only=True)
class Image:
    """What `image.prepare` leaves in the cache."""

    cache: Path
    architecture: Architecture
    qemu: str
    libraries: str  # LD_LIBRARY_PATH for an unpacked qemu; empty for an installed one
    firmware: tuple[str, ...]
    kernel: Path
    initramfs: Path
    modules: Path


@dataclass(frozen=True, kw_only=True)
class Boot:
    """One start of a guest."""

    folder: Path  # private to this start: script, pipes, console
    cpus: int = 2
    memory: str = "4G"
    writable: Path | None = None
    kvm: bool = False
    instruction_clock: bool = False  # the guest's clock counts instructions: the same at any load of the host, one CPU
    interactive: bool = False
    now: int = 0
    wire: Path | None = None  # the name of a wire between two guests
    end: int = 1  # of the wire: 1 or 2


MAC = "52:54:00:6c:62:0"  # and the end of the wire
# Speed of emulation matters more here than hardening: nothing foreign runs in the guest.
QUICK = [
    "nokaslr",
    "norandmaps",
    "mitigations=off",
    "kpti=off",
    "nopti",
    "init_on_alloc=0",
    "apparmor=0",
    "audit=0",
    "panic=-1",
    "no_timer_check",  # on a full host the emulated timer is late, and the kernel gives up on it
    "quiet",
]


def kernel_arguments(image: Image, boot: Boot) -> list[str]:
    return [
        f"console={image.architecture.console}",
        *QUICK,
        f"lb.now={boot.now}",
        f"lb.modules={image.modules}",
        f"lb.script={boot.folder / 'script'}",
        f"lb.writable={boot.writable or ''}",
        f"lb.interactive={int(boot.interactive)}",
        f"lb.end={boot.end if boot.wire is not None else ''}",
    ]


def qemu_command(image: Image, boot: Boot) -> list[str]:
    arch, folder = image.architecture, boot.folder
    command = [image.qemu, *acceleration(arch, boot), "-m", boot.memory]
    command += ["-smp", "1" if boot.instruction_clock else str(boot.cpus)]
    for place in image.firmware:
        command += ["-L", place]
    command += ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    command += ["-kernel", str(image.kernel), "-initrd", str(image.initramfs)]
    command += ["-append", " ".join(kernel_arguments(image, boot))]
    command += ["-chardev", f"file,id=console,path={folder / 'console'}", "-serial", "chardev:console"]
    command += ["-device", "virtio-serial-pci"]
    for name in ("out", "err", "status"):
        command += ["-chardev", f"file,id={name},path={folder / name}"]
        command += ["-device", f"virtserialport,chardev={name},name={name}"]
    if boot.interactive:
        command += ["-chardev", "stdio,id=shell,signal=off", "-device", "virtconsole,chardev=shell"]
    if boot.wire is not None:
        command += _wire(boot.wire, boot.end)
    command += _shared_folder("root", Path("/"), readonly=True)
    if boot.writable is not None:
        command += _shared_folder("writable", boot.writable, readonly=False)
    return command


def _wire(wire: Path, end: int) -> list[str]:
    """A virtio NIC whose frames go to the other guest as datagrams; while that is not there they are lost, as on a
    cable that hangs loose."""
    ends = {"local": f"{wire}.{end}", "remote": f"{wire}.{3 - end}"}
    socket = ",".join(f"{word}.type=unix,{word}.path={path}" for word, path in ends.items())
    return ["-netdev", f"dgram,id=wire,{socket}", "-device", f"virtio-net-pci,netdev=wire,romfile=,mac={MAC}{end}"]


def acceleration(arch: Architecture, boot: Boot) -> list[str]:
    if boot.instruction_clock:
        # sleep=on: with it off the clock leaps during file access.
        clock = ["-icount", "shift=1,sleep=on"]
        return ["-M", arch.machine, "-accel", "tcg,thread=single,tb-size=512", *clock, "-cpu", arch.cpu]
    if boot.kvm:
        return ["-M", arch.kvm_machine, "-accel", "kvm", "-cpu", "host"]
    return ["-M", arch.machine, "-accel", "tcg,thread=multi,tb-size=512", "-cpu", arch.cpu]


def _shared_folder(tag: str, path: Path, *, readonly: bool) -> list[str]:
    options = f"local,id={tag},path={path},security_model=none,multidevs=remap" + (",readonly=on" if readonly else "")
    return ["-fsdev", options, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
