"""An ordinary user: a whole run in a user namespace of their own, with cbpf."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lossbench.net.impair import registry
from lossbench.net.kernel import Kernel, user_namespaces
from tests.conftest import left_behind
from tests.forms import full

pytestmark = pytest.mark.netns
ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534


def first_closed_folder(path: Path) -> Path | None:
    """The first folder on the way to a path that an ordinary user may not enter."""
    for folder in [*reversed(path.parents), path]:
        if folder.is_dir() and not folder.stat().st_mode & 0o001:
            return folder
    return None


def as_nobody(script: str, *, readable: list[Path]) -> subprocess.CompletedProcess[str]:
    """Run a shell script as an ordinary user. An interpreter below a closed folder (/root) is shown through a private
    mount, so that nothing on the machine changes its rights."""
    prepare = []
    for path in readable:
        closed = first_closed_folder(path)
        if closed is not None:
            inside = path.relative_to(closed)
            prepare += [
                "aside=$(mktemp -d)",
                f'mount --bind "{path}" "$aside"',
                f'mount -t tmpfs -o mode=755 tmpfs "{closed}"',
                f'mkdir -p "{closed / inside}"',
                f'mount --move "$aside" "{path}"',
                'rmdir "$aside"',
            ]
    drop = f"exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups sh -c '{script}'"
    command = ["unshare", "--mount", "sh", "-ec", "\n".join([*prepare, drop])]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that an ordinary user can reach and write to."""
    folder = Path(
        subprocess.run(
            ["mktemp", "-d", "/tmp/lossbench-rootless.XXXXXX"], capture_output=True, text=True, check=True
        ).stdout.strip()
    )
    shutil.chown(folder, NOBODY, NOBODY)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def user_namespaces_work() -> None:
    reason = user_namespaces()
    if reason is not None:
        pytest.skip(f"user namespaces: {reason}")
    if any(
        first_closed_folder(p) not in (None, Path("/root")) for p in (ROOT, Path(sys.prefix), Path(sys.base_prefix))
    ):
        pytest.skip("the checkout lies where an ordinary user can't read it")


def lossbench(home: Path, arguments: str) -> subprocess.CompletedProcess[str]:
    readable = list(dict.fromkeys([Path(sys.base_prefix), Path(sys.prefix), ROOT]))
    closed = [p for p in readable if first_closed_folder(p)]
    threads = "OMP_NUM_THREADS=4 OPENBLAS_NUM_THREADS=4"  # as on a machine of users, where nobody says how many
    variables = f"HOME={home} PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={ROOT}/.package {threads}"
    script = f"cd {home} && {variables} {sys.executable} -m lossbench.cli.main {arguments}"
    return as_nobody(script, readable=closed)


def test_an_ordinary_user_runs_a_suite_with_cbpf_and_leaves_nothing(home: Path) -> None:
    done = lossbench(home, f"run proof --json --out {home}/runs")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["summary"]
    assert row["backend"] in ("cbpf", "netem") and row["columns"]["fault"] == "valid"
    assert Path(row["dir"]).stat().st_uid == NOBODY, "results belong to the user"
    assert not left_behind()


ENTERS = """
import os, sys
from lossbench.net.host import rootless
rootless.needed = lambda: True
rootless.enter = lambda: sys.exit(f"{len(os.listdir('/proc/self/task'))} threads, numpy: {'numpy' in sys.modules}")
from lossbench.cli.main import main
main()
"""
COMMANDS = ["run --hosts 2 --loss 3% -- true", "run quickstart", "replay latest", "campaign none.toml --minutes 1"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_user_namespace_is_entered_before_anything_can_start_a_thread(command: str, tmp_path: Path) -> None:
    """A process with threads enters none; what was asked in words was read by numpy first, which has some."""
    done = subprocess.run(
        [sys.executable, "-c", ENTERS, *command.split()], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.stderr.strip() == "1 threads, numpy: False"


@full
def test_an_ordinary_user_runs_a_command_of_their_own(home: Path) -> None:
    done = lossbench(home, f"run --hosts 2 --loss 3% --json --out {home}/own -- true")
    assert done.stdout, done.stderr
    rows = json.loads(done.stdout)["summary"]
    assert rows and all(row["columns"]["outcome"] == "valid" for row in rows), [row["reasons"] for row in rows]


OUTSIDE = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may ignore it
from lossbench.net.host import rootless
program = "import sys, time; open(sys.argv[1], 'w').close(); time.sleep(600)"
try:
    rootless.run_outside([sys.executable, "-c", program, sys.argv[1]], text="", environment=os.environ)
except KeyboardInterrupt:
    sys.exit("interrupted")
"""


def test_ctrl_c_while_a_workload_is_prepared_is_said_once_and_without_a_traceback(tmp_path: Path) -> None:
    """A terminal sends it to every process; the one that was loading torch showed where it was."""
    began = tmp_path / "began"
    os.mkfifo(began)
    command = [sys.executable, "-c", OUTSIDE, str(began)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True)
    began.read_bytes()  # until the program has begun
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert err == b"interrupted\n"


SERVICE = """
name = "service"
[topology]
hosts = 2
rate_mbit = 50
[[impair]]
profile = "clean"
[probe]
packets = 400
[workload]
name = "noop"
[[beside]]
role = "server"
name = "web.server"
[[beside]]
role = "web"
name = "web"
foreground = true
options = { rate = 20, seconds = 3 }
"""


@full
def test_an_ordinary_user_runs_a_web_service(home: Path) -> None:
    """As it was: nginx wanted to be nobody, who is not there."""
    (home / "service.toml").write_text(SERVICE)
    done = lossbench(home, f"run service.toml --json --out {home}/served")
    assert done.stdout, done.stderr
    (row,) = json.loads(done.stdout)["summary"]
    assert row["columns"]["outcome"] == "valid", row["reasons"]
    assert any(one.get("web.n", 0) > 20 for one in row["rows"])
    assert not left_behind()


def test_what_needs_root_says_so_in_one_line(home: Path) -> None:
    if registry.able(Kernel.tried())["netem"] is not None:
        bursty = lossbench(home, "run proof --set impair.0.profile=bursty_5")
        assert bursty.returncode == 4 and "run as root" in bursty.stderr and "Traceback" not in bursty.stderr
    lab = lossbench(home, "net up")
    assert lab.returncode == 4 and "a standing network needs root" in lab.stderr
    assert lossbench(home, "clean").returncode == 0


def test_doctor_works_without_rights(home: Path) -> None:
    report = json.loads(lossbench(home, "doctor --json").stdout)
    assert report["backend"]["name"] in ("cbpf", "netem") and report["backend"]["able"]["ebpf"]
