"""The guest's command lines and its initramfs, without starting anything."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from lossbench.errors import NotAbleError
from lossbench.net.guest import boot, image, recipe
from lossbench.net.guest.recipe import ARCHITECTURES, Boot, Image

ROOT = Path("/cache")


def an_image(name: str) -> Image:
    return Image(
        cache=ROOT,
        architecture=ARCHITECTURES[name],
        qemu="qemu",
        libraries="",
        firmware=(),
        kernel=ROOT / "k",
        initramfs=ROOT / "i",
        modules=ROOT / "m",
    )


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_hosts_root_is_shared_read_only_and_one_folder_writable(name: str) -> None:
    command = recipe.qemu_command(an_image(name), Boot(folder=Path("/run/x"), writable=Path("/home/me/results")))
    shares = [part for part in command if part.startswith("local,")]
    assert shares[0].startswith("local,id=root,path=/,") and shares[0].endswith("readonly=on")
    assert "path=/home/me/results" in shares[1] and "readonly" not in shares[1]
    assert "-no-reboot" in command and command[command.index("-display") + 1] == "none"


def test_kvm_emulation_and_the_instruction_clock_are_three_different_machines() -> None:
    arch = ARCHITECTURES["aarch64"]
    assert "kvm" in recipe.acceleration(arch, Boot(folder=ROOT, kvm=True))
    plain = recipe.acceleration(arch, Boot(folder=ROOT))
    assert "tcg,thread=multi,tb-size=512" in plain and "neoverse-n1" in plain
    clock = recipe.qemu_command(an_image("aarch64"), Boot(folder=ROOT, instruction_clock=True, cpus=4))
    assert clock[clock.index("-icount") + 1] == "shift=1,sleep=on" and clock[clock.index("-smp") + 1] == "1"


def test_the_script_keeps_folder_environment_and_quoting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINE", "it's $HOME")
    path = tmp_path / "script"
    path.write_text(boot.script(["sh", "-c", 'echo "$MINE" in "$PWD"; exit 5']))
    done = subprocess.run(["bash", str(path)], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
    assert done.stdout == f"it's $HOME in {tmp_path}\n" and done.returncode == 5


def test_the_initramfs_is_an_archive_that_cpio_unpacks(tmp_path: Path) -> None:
    data = image.cpio(["bin", "dev"], {"init": b"#!/bin/sh\n", "bin/odd": b"123"})
    assert data.startswith(b"070701") and b"TRAILER!!!" in data
    if shutil.which("cpio") is None:
        pytest.skip("no cpio to unpack it with")
    done = subprocess.run(["cpio", "-idm"], input=data, cwd=tmp_path, capture_output=True)
    assert done.returncode == 0
    assert (tmp_path / "bin/odd").read_bytes() == b"123" and (tmp_path / "init").stat().st_mode & 0o100


def test_the_speed_shim_is_built_only_where_it_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On aarch64 with a normal cache line nothing is built; a failing compiler is no failure."""
    monkeypatch.setattr(image.os, "sysconf", lambda _: 64)
    image._build_shim(ARCHITECTURES["aarch64"], tmp_path)
    monkeypatch.setattr(image.os, "sysconf", lambda _: 4096)
    monkeypatch.setattr(image, "which", lambda _: "/bin/false")
    monkeypatch.setattr(image, "_run", _refuse)
    image._build_shim(ARCHITECTURES["aarch64"], tmp_path)
    assert not (tmp_path / "icache.so").exists()


def _refuse(*_: str) -> str:
    raise NotAbleError("no")


def test_shell_scripts_of_the_guest_are_valid() -> None:
    folder = Path(image.__file__).parent
    for name in ("init.sh", "main.sh"):
        assert subprocess.run(["sh", "-n", str(folder / name)]).returncode == 0


def test_an_installed_qemu_is_taken_before_a_copy_that_was_downloaded_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an installed package's dependencies apt downloads only what is missing: the copy has no modules of its own."""
    for made in ("kernel/boot/vmlinuz-6.1", "root/usr/bin/qemu-system-x86_64", "root/usr/share/seabios/bios"):
        (tmp_path / made).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / made).touch()
    architecture = ARCHITECTURES["x86_64"]
    monkeypatch.setattr(image, "which", lambda _: "/usr/bin/qemu-system-x86_64")
    found = image._image(architecture, tmp_path)
    assert (found.qemu, found.libraries, found.firmware) == ("/usr/bin/qemu-system-x86_64", "", ())
    monkeypatch.setattr(image, "which", lambda _: None)
    assert image._image(architecture, tmp_path).qemu == str(tmp_path / "root/usr/bin/qemu-system-x86_64")
