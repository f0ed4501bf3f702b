"""Limits and mistakes are said before work, in one line that names the next step; what can be done is done."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import left_behind
from tests.forked import LOSSBENCH, begin, lossbench
from tests.networks import Build, prove
from tests.shared import wait_until_begun

pytestmark = pytest.mark.netns


def iid(**match: Any) -> dict[str, Any]:
    return {"why": "t", "name": "t", "loss": {"model": "iid", "percent": 20}, "match": match}


def many(count: int) -> list[str]:
    return [f"10.{1 + n // 62500}.{n // 250 % 250}.{n % 250 + 1}" for n in range(count)]


def spec(folder: Path, **keys: Any) -> str:
    """An experiment file."""
    path = folder / "mine.json.toml"
    path.write_text("\n".join(f"{key} = {_toml(value)}" for key, value in {"name": "mine", **keys}.items()))
    return str(path)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(one) for one in value) + "]"
    return json.dumps(value)


def refused(done: subprocess.CompletedProcess[str], code: int, words: str) -> None:
    assert done.returncode == code, done.stderr
    assert words in done.stderr and done.stderr.count("\n") == 1 and "Traceback" not in done.stderr, done.stderr
    assert left_behind() == []


@pytest.mark.parametrize("backend", ["cbpf", "ebpf"])
def test_hundreds_of_destinations_are_in_force(build: Build, backend: str) -> None:
    network = build(
        backend=backend,
        topology={"hosts": 2, "family": "ipv4"},
        impair=[{"profile": iid(destinations=[*many(300), "h0", "h1"])}],
    )
    proof = prove(network, packets=6000)
    assert proof.judgement.status.word == "valid", proof.judgement.reasons()


@pytest.mark.parametrize(
    ("backend", "impair", "words"),
    [
        ("cbpf", [{"profile": iid(destinations=many(2000))}], "instructions of classic BPF"),
        ("ebpf", [{"profile": iid(destination_ports=[1000 + n])} for n in range(400)], "BPF instructions at one hook"),
        (
            "ebpf",
            [
                {
                    "profile": {
                        "why": "t",
                        "loss": {"model": "trace", "bits": "01"},
                        "match": {"destination_ports": [9 + n]},
                    }
                }
                for n in range(64)
            ],
            "64 traces at one hook",
        ),
    ],
    ids=["destinations", "rules", "traces"],
)
def test_more_than_the_kernel_takes_is_refused_before_anything_is_built(
    tmp_path: Path, backend: str, impair: list[Any], words: str
) -> None:
    refused(lossbench("run", spec(tmp_path, backend=backend, impair=impair), "--out", str(tmp_path / "o")), 4, words)
    assert not (tmp_path / "o").exists()


def test_too_few_file_handles_are_said_with_how_many_it_takes(tmp_path: Path) -> None:
    pairs = [[f"h{a}", f"h{b}"] for a in range(34) for b in range(34) if a != b]
    path = spec(tmp_path, topology={"hosts": 34}, impair=[{"profile": iid(), "pairs": pairs}])
    done = subprocess.run(
        [*LOSSBENCH, "run", path, "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024)),
    )
    refused(done, 4, "file handles, 1024 are allowed here; ulimit -n")


def test_a_trace_in_an_experiment_may_lie_in_a_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "pattern.txt").write_text("0" * 9 + "1")
    impair = [{"profile": {"why": "t", "loss": {"model": "trace", "file": "pattern.txt"}}}]
    path = spec(tmp_path, topology={"hosts": 2}, impair=impair, probe={"packets": 4000})
    done = lossbench("run", path, "--out", str(tmp_path / "o"), "--json")
    assert done.returncode == 0, done.stderr
    (tmp_path / "pattern.txt").unlink()
    refused(lossbench("run", path, "--out", str(tmp_path / "o")), 2, "the trace can't be read")


ODD = """
import json, os
with open(os.environ["LOSSBENCH_RECORDS"], "a") as file:
    file.write('{"kind": "summary", "huge": ' + "9" * 400 + ', "none": NaN, "most": -Infinity, "fine": 1.5}\\n')
    file.write('{"kind": "row", "name": "a", "value": NaN, "far": 1e999}\\n')
    file.write('{"kind": "summary", "longer": ' + "9" * 5000 + '}\\n')
"""


def test_numbers_that_are_none_are_said_and_every_file_stays_json(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(ODD)
    done = lossbench(
        "run",
        "proof",
        "--out",
        str(tmp_path / "o"),
        "--json",
        "--set",
        "workload.barrier=false",
        "--set",
        f'workload.command=["python", "{tmp_path / "odd.py"}"]',
    )

    def strict(name: str) -> Any:
        raise AssertionError(name)

    (one,) = json.loads(done.stdout, parse_constant=strict)["summary"]
    assert one["workload"]["fine"] == 1.5 and not {"huge", "none", "most"} & set(one["workload"])
    for name in ("huge", "none", "most", "value", "far"):
        assert f"{name}: not a finite number" in one["warnings"]
    for path in (tmp_path / "o").rglob("*.json"):
        json.loads(path.read_text(), parse_constant=strict)
    (suite,) = (tmp_path / "o").iterdir()
    assert lossbench("report", str(suite)).returncode in (0, 3)


@pytest.mark.parametrize(
    ("command", "words"),
    [('["pyton", "x.py"]', "no such program: pyton"), ('["python", "nosuch.py"]', "no such script: nosuch.py")],
)
def test_a_program_that_is_not_there_is_said_before_the_network_is_built(
    tmp_path: Path, command: str, words: str
) -> None:
    done = lossbench("run", "proof", "--out", str(tmp_path / "o"), "--set", f"workload.command={command}")
    refused(done, 2, words)
    assert not (tmp_path / "o").exists()


def test_a_missing_key_is_named_beside_a_wrong_one(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text("seed = 'x'\n")
    done = lossbench("profile", "show", str(tmp_path / "p.toml"))
    assert "seed" in done.stderr and "'why' is missing" in done.stderr


def test_every_mistake_of_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text(
        'name = "bad"\nhostss = 3\n[topology]\nmtu = 3\nhosts = "many"\n[probe]\npackets = -1\n'
    )
    done = lossbench("run", str(tmp_path / "bad.toml"))
    assert done.returncode == 2
    for word in ("hostss", "topology.mtu", "topology.hosts", "probe.packets"):
        assert word in done.stderr
    assert "more)" not in done.stderr


AS_NOBODY = """
import ctypes, fcntl, json, os
from pathlib import Path
from lossbench.net.host import rootless
from lossbench.results.folders import RunFolder
import encodings.ascii
import selectors, subprocess
os.setgid(65534); os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1)  # dumpable, as after exec: else /proc/self is root's
"""


def as_nobody(code: str) -> subprocess.CompletedProcess[str]:
    """Everything is imported before: the interpreter itself may lie where only root can read."""
    command = [sys.executable, "-c", AS_NOBODY + code]
    return subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])


def test_a_folder_without_permission_is_said_as_that() -> None:
    done = as_nobody("RunFolder(Path('/sys/kernel/lossbench')).make()")
    assert "can't be written (Permission denied); check its permissions" in done.stderr
    assert "free some space" not in done.stderr


def test_the_hook_that_breaks_a_limit_is_found_among_others(tmp_path: Path) -> None:
    trace = {"why": "t", "loss": {"model": "trace", "bits": "01"}}
    impair = [{"profile": {**trace, "match": {"destination_ports": [9 + n]}}, "hosts": ["h0"]} for n in range(64)]
    impair.append({"profile": iid(destinations=many(400)), "hosts": ["h1"]})
    refused(lossbench("run", spec(tmp_path, backend="ebpf", impair=impair), "--out", str(tmp_path)), 4, "64 traces")
    path = spec(tmp_path, backend="ebpf", impair=[{"profile": iid(destinations=many(8000))}])
    refused(lossbench("run", path, "--out", str(tmp_path)), 4, "BPF instructions at one hook")


def test_a_record_that_is_nested_too_deeply_is_a_damaged_line(tmp_path: Path) -> None:
    line = '{"kind": "x", "a": ' + "[" * 900 + "]" * 900 + "}\\n"
    deep = f"import os\nopen(os.environ['LOSSBENCH_RECORDS'], 'a').write('{line}')"
    (tmp_path / "deep.py").write_text(deep)
    done = lossbench(
        "run",
        "proof",
        "--out",
        str(tmp_path / "o"),
        "--json",
        "--set",
        "workload.barrier=false",
        "--set",
        f'workload.command=["python", "{tmp_path / "deep.py"}"]',
    )
    assert "Traceback" not in done.stderr and json.loads(done.stdout)["summary"], done.stderr


HANGS = """
import time
print("I was here", flush=True)
def waits_for_nothing():
    time.sleep(600)
waits_for_nothing()
"""


def test_a_rank_that_hangs_is_shown_with_its_last_lines_and_its_stack(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    done = lossbench(
        "run",
        "proof",
        "--out",
        str(tmp_path / "o"),
        "--set",
        "workload.barrier=false",
        "--set",
        f'workload.command=["python", "{tmp_path / "hangs.py"}"]',
        "--set",
        "workload.time_limit_s=2",
        "--json",
    )
    (one,) = json.loads(done.stdout)["summary"]
    (reason,) = [text for text in one["reasons"]["outcome"] if "ran past its limit" in text]
    assert "I was here" in reason and "waits_for_nothing" in reason and "hangs.py" in reason, reason


def test_a_run_that_fails_says_where_its_folder_is_and_how_to_go_on(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], check=True)
    try:
        done = lossbench("run", "proof", "--out", str(disk), "--seeds", "3")
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert done.returncode == 4 and "No space left" in done.stderr
    assert "to go on: lossbench run" in done.stderr and "--resume" in done.stderr


@pytest.mark.wallclock
def test_interrupted_it_says_how_to_go_on_and_that_works(tmp_path: Path) -> None:
    process = begin("run", "proof", "--out", str(tmp_path), "--set", "workload.options.seconds=20")
    wait_until_begun(process, tmp_path)
    process.send_signal(2)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    words = " ".join(errors.split())
    (folder,) = tmp_path.iterdir()
    assert f"to go on: lossbench run {folder} --resume" in words


ALONE = """
import time
def running():
    found = []
    for entry in os.listdir("/proc"):
        try:
            found += [entry] if b"4321.25" in open(f"/proc/{entry}/cmdline", "rb").read().split(bytes(1)) else []
        except OSError:
            pass
    return len(found)
child = os.fork()
if child == 0:
    os.setsid()
    rootless.enter()
    rootless.run_outside(["sleep", "4321.25"], text="", environment=os.environ)
limit = time.monotonic() + 20
while not running() and time.monotonic() < limit:
    time.sleep(0.05)
print(running())
os.kill(child, 9)
os.waitpid(child, 0)
while running() and time.monotonic() < limit:
    time.sleep(0.05)
print(running())
"""


def test_what_is_fetched_ends_with_whoever_asked_for_it() -> None:
    done = as_nobody(ALONE)
    if "can't be entered" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.stdout == "1\n0\n", done.stdout + done.stderr


OUTSIDE = """
before = os.readlink("/proc/self/ns/net")
rootless.enter()
assert os.readlink("/proc/self/ns/net") != before
print(rootless.run_outside(["readlink", "/proc/self/ns/net"], text="", environment=os.environ) == (0, before + chr(10)))
"""


def test_without_root_data_is_fetched_through_the_machines_own_network() -> None:
    done = as_nobody(OUTSIDE)
    if "can't be entered" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.stdout == "True\n", done.stderr


def test_an_environment_that_is_not_utf_8_reaches_the_guest_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from lossbench.net.guest import boot

    monkeypatch.setenv("LB_ODD", os.fsdecode(b"\xff\xfe"))
    assert b"\xff\xfe" in boot.script(["true"]).encode("utf-8", "surrogateescape")


@pytest.mark.training
def test_a_forked_rank_that_hangs_is_shown_with_its_stack_too(tmp_path: Path) -> None:
    done = lossbench(
        "run",
        "quickstart",
        "--out",
        str(tmp_path),
        "--set",
        "workload.options.steps=1000000",
        "--set",
        "workload.time_limit_s=2",
        "--set",
        "probe.packets=2000",
        "--set",
        "topology.hosts=2",
        "--set",
        'workload.options.strategy="rps"',
        "--set",
        'impair.0.profile="loss_1"',
        "--json",
    )
    for one in json.loads(done.stdout)["summary"]:
        (reason,) = [text for text in one["reasons"]["outcome"] if "ran past its limit" in text]
        assert "  > " in reason and "workloads/" in reason, reason
