"""One command for one's own program: no file, no line of code in it, and a row of what it did."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lossbench.results.models import RunSummary
from tests.cli.test_command import lossbench
from tests.report import made

pytestmark = pytest.mark.netns
# A ring over TCP: every rank sends 4 MB to the next one, and needs nothing of ours to know who that is. When all of it
# has arrived it keeps what the kernel counted in its host.
RING = """
import fcntl, os, pathlib, socket, termios, threading, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
addresses = os.environ["LOSSBENCH_ADDRESSES"].split(",")
server = socket.create_server((addresses[rank], 5000))
def take():
    one, _ = server.accept()
    while one.recv(1 << 16): pass
taker = threading.Thread(target=take); taker.start()
while True:
    try: out = socket.create_connection((addresses[(rank + 1) % world], 5000), timeout=60); break
    except ConnectionRefusedError: pass
out.settimeout(None)
for _ in range(40): out.sendall(bytes(100_000))
while any(fcntl.ioctl(out, termios.TIOCOUTQ, bytes(4))): time.sleep(0.01)
out.close(); taker.join()
with open(f"snmp-{rank}", "a") as file: file.write(pathlib.Path("/proc/net/snmp").read_text())
print("rank", rank, "is done", flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ring.py").write_text(RING)
    return tmp_path


def test_a_program_that_knows_nothing_of_us_gets_a_row_beside_a_clean_network(folder: Path) -> None:
    done = lossbench("run", "--hosts", "2", "--loss", "3%", "--json", "--", "python", "ring.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    clean, lossy = json.loads(done.stdout)["summary"]
    assert (clean["point"], lossy["point"]) == ({"arm": "clean"}, {"arm": "loss 3%"})
    for one in (clean, lossy):
        known: dict[str, Any] = one["workload"]
        assert one["columns"]["fault"] == one["columns"]["outcome"] == "valid", one["reasons"]
        assert known["sent_mb"] > 8 and known["packets"] > 5000 and known["wall_s"] > 0
        assert known["cpu_s"] > 0 and known["memory_mb"] > 1 and known["tcp_resent_percent"] is not None
    assert clean["workload"]["lost_percent"] == 0 and 2 < lossy["workload"]["lost_percent"] < 4
    assert lossy["workload"]["tcp_resent_percent"] > 1
    # Without loss, too, the kernel of a busy machine sends again what was merely late: as much as it says itself.
    for number, one in enumerate((clean, lossy)):
        counted = sum(resent_percent(folder / f"snmp-{rank}", number) for rank in (0, 1)) / 2
        assert one["workload"]["tcp_resent_percent"] == pytest.approx(counted, abs=0.5)


def resent_percent(kept: Path, run: int) -> float:
    """What a host's kernel counted in a run, as the program read it there."""
    lines = [line.split() for line in kept.read_text().splitlines() if line.startswith("Tcp:")]
    found = dict(zip(*lines[2 * run : 2 * run + 2], strict=True))
    first, again = int(found["OutSegs"]), int(found["RetransSegs"])
    return 100 * again / (first + again)


def test_people_see_the_row_the_last_words_and_with_tee_all_of_them(folder: Path) -> None:
    done = lossbench("run", "--hosts", "2", "--tee", "--", "python", "ring.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "ring: results" in done.stdout and "rank 0 said last" in done.stdout and "| rank 0 is done" in done.stdout
    assert "rank 0 is done" in done.stderr
    assert (
        max(len(line) for line in done.stdout.splitlines() if "results" not in line and "said last" not in line) <= 80
    )


def test_a_dry_run_says_how_long_it_takes_by_what_the_same_points_took_before(folder: Path) -> None:
    words = ("--hosts", "2", "--sweep", "loss=0,5", "--dry-run", "--", "python", "ring.py")
    for number, seconds in enumerate((40.0, 50.0, 60.0)):
        ended = RunSummary(
            point={"loss": 0}, seed=number, backend="ebpf", hosts=2, verdict="valid", columns={}, duration_s=seconds
        )
        place = folder / "results" / "runs" / f"x{number}"
        (place / "000").mkdir(parents=True)
        planned = {"number": 0, "point": {"loss": 0}, "seed": number, "experiment": {}}
        session = {"started": "2026-01-01T00:00:00+0000"}
        plan = {"format": 1, "suite": "ring", "run_id": f"x{number}", "plan": [planned], "sessions": [session]}
        (place / "suite.json").write_text(json.dumps(plan))
        (place / "000" / "summary.json").write_text(ended.model_dump_json())
    said = lossbench("run", *words, cwd=folder).stdout
    assert "about 2 min of workload, by 3 earlier runs in results/runs" in said, said


def test_what_init_writes_is_what_the_same_words_run(folder: Path) -> None:
    words = (
        "--hosts",
        "3",
        "--sweep",
        "loss=0,2",
        "--delay",
        "5ms",
        "--rate",
        "50mbit",
        "--time-limit",
        "90s",
        "--seeds",
        "1",
        "--capture",
    )
    assert lossbench("init", "mine.toml", *words, "--", "python", "ring.py", cwd=folder).returncode == 0
    said = [
        lossbench("run", *how, "--dry-run", *after, cwd=folder).stdout
        for how, after in ((("mine.toml",), ()), (words, ("--", "python", "ring.py")))
    ]
    assert said[0] == said[1] and "ring: 2 runs" in said[0] and "3 hosts" in said[0] and "loss 2%, 5 ms" in said[0]
    assert "at most 3 min" in said[0] and not (folder / "results").exists(), "nothing was run"
    assert "how long it takes is not known" in said[0]
    again = lossbench("init", "mine.toml", cwd=folder)
    assert again.returncode == 2 and "mine.toml is there already" in again.stderr


def test_a_dry_run_of_what_is_gone_on_with_shows_what_is_left(tmp_path: Path) -> None:
    """As it was: "to continue an interrupted run add --resume", which had been given."""
    place = made.suite(tmp_path, [{"percent": 0}, {"percent": 5}], 1, lambda point, seed: {}, options={})
    (place / "001" / "summary.json").unlink()
    before = sorted(place.rglob("*"))
    done = lossbench("run", str(place), "--resume", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0 and "made: 1 run\n" in done.stdout and "1  5, seed 0" in done.stdout, done.stderr
    assert sorted(place.rglob("*")) == before, "nothing was changed"
    (place / "001" / "summary.json").write_text((place / "000" / "summary.json").read_text().replace("0}", "5}", 1))
    assert "every run of it has ended" in lossbench("run", str(place), "--resume", "--dry-run", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "nothing to run; a suite"),
        (
            ("--loss", "3%"),
            "--loss applies only to a command given after --; for example lossbench run --loss 3% -- python train.py",
        ),
        (("quickstart", "--hosts", "2"), "--hosts applies only to a command given after --"),
        (("quickstart", "--delay", "9ms"), "--set impair.0.profile=wan_40ms"),
        (("quickstart", "--burst", "8"), "--set impair.0.profile=bursty_5"),
        (("quickstart", "--sweep", "loss=1,5"), "under [sweep]"),
        (("--loss", "3%", "--"), "no command behind --"),
        (("quickstart", "--", "python", "ring.py"), "quickstart already has a program of its own"),
        (("--", "pythn", "ring.py"), "no such program: pythn"),
        (("--", "python", "rong.py"), "no such script: rong.py"),
        (("--hosts", "2", "--loss", "3%", "--sweep", "lss=1", "--", "python", "ring.py"), "--sweep lss=1"),
        (("--hosts", "1", "--", "python", "ring.py"), "--hosts 1: at least 2; for example --hosts 4"),
        (("--", "./ring.py"), "./ring.py may not be executed; python ./ring.py"),
        (("nowhere.toml",), "lossbench init nowhere.toml -- COMMAND writes one"),
        (
            ("ring.py",),
            "ring.py is no suite; a command stands behind --; for example lossbench run --loss 3% -- python",
        ),
        (("--loss", "3%", "ring.py"), "ring.py is no suite; a command stands behind --"),
        (("--loss", "3%", "python", "ring.py"), "(ring.py); a command stands behind --; for example"),
        (("--dry-run", "--", "python", "rong.py"), "no such script: rong.py"),
        (("--", "torchrun", "ring.py"), "torchrun would make every host a world of its own"),
        (
            ("--time-limit", "0", "--", "python", "ring.py"),
            "--time-limit 0: no time at all; without a limit: --time-limit off",
        ),
        (("--delay", "20m", "--", "python", "ring.py"), "--delay: '20m' is not a number of us, ms, s"),
        (("quickstart", "--hosts", "4"), "--hosts applies only to a command given after --"),
        (("quickstart", "--nodes", "2"), "--nodes goes with --slurm"),
        (("quickstart", "--sudo"), "--sudo goes with --slurm"),
        (("quickstart", "--yes-these-nics"), "--yes-these-nics goes with --lab or --slurm"),
    ],
)
def test_a_mistake_is_one_line_with_the_next_step(folder: Path, words: tuple[str, ...], said: str) -> None:
    done = lossbench("run", *words, cwd=folder)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def test_options_behind_the_dashes_are_the_commands_own(folder: Path) -> None:
    (folder / "say.py").write_text("import sys; print(sys.argv[1:])")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "lossbench.cli.main",
            "run",
            "--hosts",
            "2",
            "--",
            "python",
            "say.py",
            "--loss",
            "--",
            "-x",
        ],
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert "| ['--loss', '--', '-x']" in done.stdout, done.stderr


SAYS = """
import lossbench
for step in range(3): lossbench.record("step", step=step, loss=1.0 / (step + 1))
lossbench.summary(accuracy=0.75, tokens_s=1200.0, units={"tokens_s": "1/s"})
"""


def test_two_lines_add_columns_and_outside_of_a_run_they_do_nothing(folder: Path) -> None:
    (folder / "says.py").write_text(SAYS)
    alone = subprocess.run([sys.executable, "says.py"], capture_output=True, text=True, cwd=folder)
    assert (alone.returncode, alone.stdout, alone.stderr) == (0, "", "")
    done = lossbench("run", "--hosts", "2", "--json", "--", "python", "says.py", cwd=folder)
    (row,) = json.loads(done.stdout)["summary"]
    assert row["workload"]["accuracy"] == 0.75 and row["units"]["tokens_s"] == "1/s" and row["workload"]["wall_s"] > 0


def test_there_is_a_list_of_everything_and_a_typo_is_guessed(folder: Path) -> None:
    said = lossbench("list", cwd=folder).stdout
    assert all(word in said for word in ("quickstart", "bursty_5", "bounded_drift", "suites", "conditions"))
    assert max(len(line) for line in said.splitlines()) <= 80
    assert "did you mean quickstart?" in lossbench("run", "quikstart").stderr
    assert "did you mean bursty_5" in lossbench("run", "--profile", "burst_5", "--", "true").stderr
    assert lossbench("run", "-h").stdout == lossbench("run", "--help").stdout
