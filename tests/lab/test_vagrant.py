"""The Vagrantfile and what it runs inside: read by ruby and by a stand-in for Vagrant; the script itself for real, in
two machines under QEMU (`make test-guest-pair`)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from lossbench.spec import lab as labs
from tests.forms import full
from tests.lab.machines import missing
from tests.nic.test_pair import guest

ROOT = Path(__file__).resolve().parents[2]
# Records every call on a configuration object, as Vagrant would be told.
STAND_IN = """
require "json"
class Told
  attr_reader :calls
  def initialize(calls = []) = @calls = calls
  def method_missing(name, *given, **named, &block)
    inner = Told.new(@calls)
    @calls << { name: name.to_s, given: given, named: named } unless given.empty? && named.empty?
    block.call(inner, inner) if block
    inner
  end
  def respond_to_missing?(*) = true
end
module Vagrant
  def self.configure(version)
    told = Told.new
    yield told
    puts JSON.dump({ version: version, calls: told.calls })
  end
end
load "Vagrantfile"
"""


def told(**environment: str) -> list[dict[str, Any]]:
    if shutil.which("ruby") is None:
        pytest.skip("needs ruby")
    asked = {**os.environ, **environment}
    done = subprocess.run(["ruby", "-e", STAND_IN], cwd=ROOT, env=asked, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["version"] == "2"
    return list(found["calls"])


def test_keys_are_made_also_where_options_of_vagrant_stand_before_its_command(tmp_path: Path) -> None:
    """As it was: `vagrant --no-color up` made none, and provisioning ended without them."""
    if shutil.which("ruby") is None or shutil.which("ssh-keygen") is None:
        pytest.skip("needs ruby and ssh-keygen")
    for name in ("Vagrantfile", "provision.sh"):
        shutil.copy(ROOT / name, tmp_path / name)
    for words, made in ((["status"], False), (["--no-color", "up", "node1"], True)):
        done = subprocess.run(["ruby", "-e", STAND_IN, "--", *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / ".lossbench-lab" / "host2.pub").exists() == made


def of(calls: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [one for one in calls if one["name"] == name]


def test_it_is_ruby_and_the_script_is_sh() -> None:
    assert subprocess.run(["sh", "-n", "provision.sh"], cwd=ROOT).returncode == 0
    if shutil.which("ruby") is not None:
        assert subprocess.run(["ruby", "-c", "Vagrantfile"], cwd=ROOT, capture_output=True).returncode == 0


def test_three_machines_a_pinned_box_and_an_isolated_data_network_for_both_hypervisors() -> None:
    calls = told()
    assert of(calls, "box=")[0]["given"] == ["cloud-image/debian-12"]
    assert of(calls, "box_version=")[0]["given"][0][:4].isdigit(), "pinned"
    assert [one["given"][0] for one in of(calls, "define")] == ["node1", "node2", "controller"]
    assert {one["given"][0] for one in of(calls, "provider")} == {"libvirt", "virtualbox"}
    data = [one["named"] for one in of(calls, "network") if one["named"].get("auto_config") is False]
    assert [one["ip"] for one in data] == ["10.99.0.1", "10.99.0.2"]
    for one in data:
        assert one["libvirt__forward_mode"] == "veryisolated" and one["libvirt__dhcp_enabled"] is False
        assert one["virtualbox__intnet"] and one["libvirt__mtu"] == "1500"
    assert of(calls, "machine_virtual_size=")[0]["given"] == [20] and of(calls, "disk")[0]["named"]["size"] == "20GB"
    roles = [one["named"]["env"]["LB_ROLE"] for one in of(calls, "provision")]
    assert roles == ["host", "host", "controller"]
    machines = of(calls, "provision")[-1]["named"]["env"]["LB_MACHINES"]
    assert machines == "192.168.57.11=10.99.0.1 192.168.57.12=10.99.0.2"


def test_the_number_of_hosts_mtu_and_box_can_be_chosen_and_one_machine_alone_has_no_lab() -> None:
    calls = told(LB_HOSTS="4", LB_MTU="9000", LB_BOX="my/box", LB_OFFLINE="wheelhouse", LB_TORCH_INDEX="mirror")
    assert len(of(calls, "define")) == 5 and of(calls, "box=")[0]["given"] == ["my/box"]
    assert not of(calls, "box_version="), "of another box we know no version"
    assert {one["named"]["env"]["LB_MTU"] for one in of(calls, "provision")} == {"9000"}
    assert {one["named"]["env"]["LB_OFFLINE"] for one in of(calls, "provision")} == {"/vagrant/wheelhouse"}
    assert {one["named"]["env"]["LB_TORCH_INDEX"] for one in of(calls, "provision")} == {"mirror"}
    alone = told(LB_HOSTS="0")
    assert [one["given"][0] for one in of(alone, "define")] == ["controller"]
    assert of(alone, "provision")[0]["named"]["env"]["LB_ROLE"] == "alone"


def test_the_controller_gets_a_lab_that_can_be_read_and_trusts_nobody_at_first_sight(tmp_path: Path) -> None:
    if os.geteuid() or shutil.which("ssh-keygen") is None:
        pytest.skip("needs root and ssh-keygen")
    keys, prefix = tmp_path / "keys", tmp_path / "opt"
    subprocess.run(["sh", "provision.sh", "keys", str(keys), "2"], cwd=ROOT, check=True)
    wanted = {
        "LB_ROLE": "controller",
        "LB_KEYS": str(keys),
        "LB_MACHINES": "192.168.57.11=10.99.0.1 192.168.57.12=10.99.0.2",
        "LB_PYTHON": "/opt/other/bin/python",
        "LB_PREFIX": str(prefix),
    }
    for _ in range(2):  # as often as you like
        subprocess.run(["sh", "provision.sh"], cwd=ROOT, env={**os.environ, **wanted}, check=True, capture_output=True)
    lab = labs.load(prefix / "lab.toml")
    assert [(one.ssh, one.address, one.control) for one in lab.machine] == [
        ("node1", "10.99.0.1", "192.168.57.11"),
        ("node2", "10.99.0.2", "192.168.57.12"),
    ]
    assert {one.python for one in lab.machine} == {"/opt/other/bin/python"}
    config = subprocess.run(["ssh", "-G", "-F", lab.ssh_config, "node2"], capture_output=True, text=True).stdout
    assert "hostname 192.168.57.12" in config and "port 22022" in config
    known = (prefix / "known_hosts").read_text().splitlines()
    assert known[1].split()[2] == (keys / "host2.pub").read_text().split()[1]
    assert (prefix / "user").stat().st_mode & 0o077 == 0


def offline(folder: Path, *wheels: str) -> subprocess.CompletedProcess[str]:
    """provision.sh on a machine that has no torch, with a dpkg and a pip that only write down what they are told."""
    if os.geteuid():
        pytest.skip("needs root")
    python, programs, packages = folder / "opt" / "venv" / "bin" / "python", folder / "bin", folder / "packages"
    for one, text in ((python, '[ "$1" = -m ] || exit 1'), (programs / "dpkg", ""), (programs / "ln", "")):
        one.parent.mkdir(parents=True, exist_ok=True)
        one.write_text(f'#!/bin/sh\n{text}\necho "${{0##*/}} $*" >> {folder}/told\n')
        one.chmod(0o755)
    packages.mkdir()
    for name in ("iproute2.deb", *wheels):
        (packages / name).touch()
    wanted = {"LB_ROLE": "alone", "LB_OFFLINE": str(packages), "LB_PREFIX": str(folder / "opt")}
    known = {**os.environ, **wanted, "PATH": f"{programs}:{os.environ['PATH']}"}
    return subprocess.run(["sh", "provision.sh"], cwd=ROOT, env=known, capture_output=True, text=True)


def test_offline_its_packages_are_installed_from_the_folder(tmp_path: Path) -> None:
    """As it was: no package was installed, and a machine without venv or sshd could not be made part of a lab."""
    done = offline(tmp_path, "torch-2.8.whl")
    assert done.returncode == 0, done.stderr
    told = (tmp_path / "told").read_text()
    assert f"dpkg --skip-same-version -i {tmp_path}/packages/iproute2.deb\n" in told and "--no-index" in told


def test_offline_a_missing_torch_is_said_in_one_line(tmp_path: Path) -> None:
    """As it was: pip's own words about versions that it did not find."""
    done = offline(tmp_path)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "no torch" in done.stderr and "pip download torch" in done.stderr


@pytest.mark.parametrize(
    ("cards", "data", "found"),
    [
        ({"eth0": "192.168.121.5/24", "eth1": "192.168.57.11/24", "eth2": ""}, "10.99.0.1/24", "eth2"),
        ({"eth0": "192.168.121.5/24", "eth1": "192.168.57.11/24", "eth2": "10.99.0.1/24"}, "10.99.0.1/24", "eth2"),
        ({"eth0": "192.168.121.5/24", "eth1": "", "eth2": "10.99.0.1/24"}, "10.99.0.1/24", "eth2"),
        ({"eth0": "192.168.121.5/24", "eth1": "", "eth2": ""}, "10.99.0.1/24", "candidates: eth1 eth2"),
        ({"eth0": "192.168.121.5/24"}, "10.99.0.1/24", "candidates: none"),
    ],
)
@pytest.mark.netns
def test_the_data_network_is_the_one_card_without_an_address(
    tmp_path: Path, cards: dict[str, str], data: str, found: str
) -> None:
    """At the first start; at the next one it is the card that has the address. Bridges and the like are no cards."""
    system, programs = tmp_path / "net", tmp_path / "bin"
    for name in (*cards, "lo", "docker0"):
        (system / name).mkdir(parents=True)
        (system / name / "type").write_text("772" if name == "lo" else "1")
        if name in cards:
            (system / name / "device").mkdir()
    programs.mkdir()
    lines = "".join(f'{name}) echo "2: {name} inet {text} scope global" ;;\n' for name, text in cards.items() if text)
    (programs / "ip").write_text(f'#!/bin/sh\ncase "$6" in\n{lines}*) ;;\nesac\n')
    (programs / "ip").chmod(0o755)
    text = (ROOT / "provision.sh").read_text()
    function = text[text.index("data_interface() {") : text.index("set_up_data() {")]
    script = tmp_path / "asked.sh"
    script.write_text(f'set -eu\nfail() {{ echo "$*"; exit 1; }}\n{function}\ndata_interface\n')
    inside = 'mount --bind "$0" /sys/class/net && exec sh "$1"'
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", inside, str(system), str(script)]
    known = {**os.environ, "LB_DATA": data, "PATH": f"{programs}:{os.environ['PATH']}"}
    done = subprocess.run(command, env=known, capture_output=True, text=True)
    said = done.stdout.strip()
    assert said == found if done.returncode == 0 else found.startswith("candidates") and found in said, done


def wheel(folder: Path, name: str, files: dict[str, str], *, requires: str = "") -> None:
    """As small as one may be."""
    info = f"{name}-1.0.dist-info"
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as file:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            file.writestr(path, text)


@full
def test_offline_new_code_of_the_same_version_takes_the_place_of_the_old(tmp_path: Path) -> None:
    """With a real venv and a real pip. As it was: pip kept what had the same version, and the new stamp was written, so
    that old code stayed for good."""
    if os.geteuid():
        pytest.skip("needs root")
    programs, wheels, prefix = tmp_path / "bin", tmp_path / "wheels", tmp_path / "opt"
    for folder in (programs, wheels):
        folder.mkdir()
    (programs / "ln").write_text("#!/bin/sh\n")  # nothing outside of the folder
    (programs / "ln").chmod(0o755)
    wheel(wheels, "torch", {"torch/__init__.py": ""})
    wanted = {"LB_ROLE": "alone", "LB_OFFLINE": str(wheels), "LB_PREFIX": str(prefix)}
    known = {**os.environ, **wanted, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": ""}
    for said in ("old", "new"):
        wheel(wheels, "lossbench", {"lossbench/__init__.py": f"def main(): print('{said}')\n"}, requires="torch")
        done = subprocess.run(["sh", "provision.sh"], cwd=ROOT, env=known, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        there = subprocess.run([prefix / "venv" / "bin" / "lossbench"], env=known, capture_output=True, text=True)
        assert there.stdout == f"{said}\n", there


def online(folder: Path, *, free_kib: int, **more: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """provision.sh on an x86_64 machine without torch, with a pip that only writes down what it is told."""
    if os.geteuid():
        pytest.skip("needs root")
    python, programs = folder / "opt" / "venv" / "bin" / "python", folder / "bin"
    for one, text in (
        (python, '[ "$1" = -m ] || exit 1'),
        (programs / "ln", ""),
        (programs / "dpkg-query", "echo installed; exit"),
        (programs / "uname", "echo x86_64; exit"),
        (programs / "df", f"echo head; echo / 9 9 {free_kib} 9% /; exit"),
    ):
        one.parent.mkdir(parents=True, exist_ok=True)
        one.write_text(f'#!/bin/sh\n{text}\necho "${{0##*/}} $*" >> {folder}/told\n')
        one.chmod(0o755)
    (folder / "told").touch()
    known = {**os.environ, "LB_ROLE": "alone", "LB_PREFIX": str(folder / "opt"), **more}
    known["PATH"] = f"{programs}:{os.environ['PATH']}"
    done = subprocess.run(["sh", "provision.sh"], cwd=ROOT, env=known, capture_output=True, text=True)
    return done, [one for one in (folder / "told").read_text().splitlines() if "pip install" in one]


def test_torchs_wheel_for_cpus_is_taken_first_where_an_index_has_one(tmp_path: Path) -> None:
    """As it was: every virtual machine of 4 GiB got CUDA's libraries."""
    done, said = online(tmp_path, free_kib=1, LB_TORCH_INDEX="mirror")
    assert done.returncode == 0, done.stderr
    assert said[0].endswith("--index-url mirror torch") and "-c" in said[0] and len(said) == 2


def test_a_disk_that_cudas_libraries_do_not_fit_on_is_said_before_they_are_fetched(tmp_path: Path) -> None:
    done, said = online(tmp_path, free_kib=7 << 20)
    assert done.returncode == 1 and "no 8 GiB free: LB_TORCH_INDEX" in done.stderr and said == []
    done, said = online(tmp_path, free_kib=9 << 20)
    assert done.returncode == 0 and len(said) == 1


def started_again(folder: Path, **programs: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """provision.sh on a host that has no way out, in a /run of its own; and what its programs were told."""
    if os.geteuid() or shutil.which("ssh-keygen") is None or Path("/run/systemd/system").is_dir():
        pytest.skip("needs root, ssh-keygen, and no systemd that would be told of a service")
    bin_, keys, prefix = folder / "bin", folder / "keys", folder / "opt"
    bin_.mkdir(exist_ok=True)
    usual = {"apt-get": "exit 100", "dpkg-query": "echo installed", "ip": "", "sshd": "", "ln": "", "pip": "exit 1"}
    for name, text in {**usual, **programs}.items():
        (bin_ / name).write_text(f'#!/bin/sh\necho "${{0##*/}} $*" >> {folder}/told\n{text}\n')
        (bin_ / name).chmod(0o755)
    subprocess.run(["sh", "provision.sh", "keys", str(keys), "1"], cwd=ROOT, check=True)
    wanted = {"LB_ROLE": "host", "LB_KEYS": str(keys), "LB_NUMBER": "1", "LB_DATA": "10.99.0.1/24"}
    wanted |= {"LB_INTERFACE": "eth1", "LB_PREFIX": str(prefix), "PATH": f"{bin_}:{os.environ['PATH']}"}
    inside = [
        "unshare",
        "-m",
        "--propagation",
        "private",
        "sh",
        "-c",
        "mount -t tmpfs tmpfs /run && exec sh provision.sh",
    ]
    done = subprocess.run(inside, cwd=ROOT, env={**os.environ, **wanted}, capture_output=True, text=True)
    said = (folder / "told").read_text().splitlines()
    (folder / "told").unlink()
    return done, said


@pytest.mark.netns
def test_a_machine_that_starts_again_without_a_way_out_is_back_in_its_lab(tmp_path: Path) -> None:
    """As it was: every start began with apt-get update and pip, and without them it got neither address nor SSH. Nor
    did it get SSH where the number of its last server was somebody else's by now."""
    venv = tmp_path / "opt" / "venv" / "bin"
    venv.mkdir(parents=True)
    for name in ("python", "lossbench"):
        (venv / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/told\n')
        (venv / name).chmod(0o755)
    (tmp_path / "opt" / "sshd.pid").write_text(str(os.getpid()))
    first, said = started_again(tmp_path)
    assert first.returncode == 0, first.stderr
    assert any("pip install" in one for one in said), "its code is not known to be there"
    again, said = started_again(tmp_path)
    assert again.returncode == 0 and not any("pip" in one or "apt-get" in one for one in said), said
    assert any(one.startswith("ip addr replace 10.99.0.1/24 dev eth1") for one in said)
    assert sum(one.startswith("sshd -f") for one in said) == 1


@pytest.mark.netns
def test_an_install_that_fails_is_said_and_keeps_no_machine_out_of_its_lab(tmp_path: Path) -> None:
    done, said = started_again(tmp_path, **{"dpkg-query": "exit 1"})
    assert done.returncode != 0 and any(one.startswith("apt-get update") for one in said)
    before = said[: next(n for n, one in enumerate(said) if one.startswith("apt-get"))]
    assert any(one.startswith("ip addr replace") for one in before) and any(one.startswith("sshd") for one in before)


@pytest.mark.pair
def test_two_provisioned_machines_train_over_netem_on_their_real_interfaces(tmp_path: Path) -> None:
    if os.environ.get("LOSSBENCH_PAIR") != "full":
        pytest.skip("ten minutes: make test-guest-pair")
    if missing() is not None:
        pytest.skip(missing() or "")
    keys = tmp_path / "keys"
    subprocess.run(["sh", str(ROOT / "provision.sh"), "keys", str(keys), "2"], check=True)
    for end in (1, 2):
        shutil.copytree(keys, tmp_path / f"results{end}" / "keys")
    guests = [
        guest(
            end,
            tmp_path,
            str(end),
            str(tmp_path / f"results{end}" / "keys"),
            str(tmp_path / f"results{end}"),
            module="tests.lab.vm_end",
        )
        for end in (1, 2)
    ]
    said = [process.communicate(timeout=1700)[0] for process in guests]
    one, other = (json.loads(text.strip().splitlines()[-1]) for text in said)
    assert [row["wrong"] for row in one["check"]["machines"]] == [[], []]
    assert one["run"]["exit"] == 0, one["run"]
    for point in one["run"]["summary"]:
        assert point["backend"] == "netem" and point["columns"]["fault"] == point["columns"]["outcome"] == "valid"
        assert point["met"]["lost_by_rule"] > 0
    assert one["same"] and one["same_there"] == "True" and other["same"]
    print(one["run_s"], [point["columns"] for point in one["run"]["summary"]])
