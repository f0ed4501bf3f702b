"""Commands of README and docs that only read, run as printed against stored results: those that build a network are in
test_as_printed.py. In one process, since most of a command's second is its imports."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.forms import full
from tests.ground.test_docs import COMMAND, MENTIONED, PRINTED
from tests.report import made

READS = ("report", "compare", "export", "tag", "list", "schema", "profile")
LINES = sorted({line for _, line in PRINTED + MENTIONED if line.split()[0] in READS and line != "tag"})
SLOW = ("--tensorboard", "--wandb-offline", "--plots")  # what they write is seen in tests/report
POINTS = [
    {"strategy": strategy, "profile": profile} for strategy in ("reliable", "rps") for profile in ("clean", "loss_10")
]
NAMED = ("main", "mine", "A", "B", "ddp", "lossy_ddp")  # suites that lines compare
IDS = {"ab12cd": "3c39f4a", "98fe76": "b15d59f"}  # and runs of one, with the commits that they were made with
OTHERS = {"RUN": "latest", "--commit 908bc53": "--commit 3c39f4a", "nccl-tests": "nccl-tests --in collectives"}
TABLE = "from lossbench.report.content import Table\n\ndef make(content):\n    return Table('mine', ['a'], [])\n"


def row(point: dict[str, Any], seed: int) -> dict[str, Any]:
    return {"accuracy": 0.9 + 0.01 * seed, "wall_s": 5.0 + 0.01 * seed}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with results of every name that is printed."""
    folder = tmp_path_factory.mktemp("printed")
    runs = folder / "results" / "runs"
    for name in NAMED:
        made.suite(runs, POINTS[:1], 2, row, name=name, run_id=f"{name.lower()}0")
    for run_id, commit in IDS.items():
        place = made.suite(runs, POINTS, 2, row, name="quickstart", run_id=run_id, hosts=2)
        suite = made.read(place / "suite.json")
        git = {"commit": commit + "0" * 33, "dirty": False}
        suite["sessions"] = [made.session(git=git, started="2026-11-20T10:00:00+0000")]
        made.write(place / "suite.json", suite)
        for rank in range(2):
            lines: list[dict[str, Any]] = [{"kind": "begin", "rank": rank, "parameters": 1001}]
            lines += [
                {"kind": "step", "rank": rank, "step": n, "loss": 1.0, "compute_ms": 1.5, "optimizer_ms": 0.5}
                for n in range(3)
            ]
            records = place / "000" / "records" / f"rank-{rank}.jsonl"
            records.write_text("".join(json.dumps({**line, "time_s": 1e9}) + "\n" for line in lines))
    place = made.suite(folder / "collectives", POINTS[:1], 1, row)
    sizes = {"contender": "lossy", "op": "all_reduce", "dtype": "float32", "mb": 16.0, "n": 4, "p50_ms": 10.0}
    made.write(place / "000" / "summary.json", {**made.read(place / "000" / "summary.json"), "rows": [sizes]})
    (folder / "my_module.py").write_text(TABLE)
    return folder


def test_there_are_lines_of_every_kind() -> None:
    """As it was: "what is printed is run", and 17 of 111 lines were."""
    assert len(LINES) >= 30 and {line.split()[0] for line in LINES} == set(READS)


@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=full) if any(one in line for one in SLOW) else line for line in LINES]
)
def test_a_line_that_only_reads_does_what_it_says(
    stored: Path, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--wandb-offline" in line:
        pytest.importorskip("wandb")
    monkeypatch.chdir(stored)
    monkeypatch.syspath_prepend(stored)
    for printed, here in OTHERS.items():
        line = line.replace(printed, here)
    line = line.split(" > ")[0] if "--fail-if" not in line else line
    verb, _, rest = line.partition(" ")
    for words in rest.split("|") if verb == "schema" else [rest]:
        try:
            code = COMMAND.main([verb, *shlex.split(words)], standalone_mode=False)
        except SystemExit as ended:
            code = ended.code
        said = capsys.readouterr()
        assert code in ((0, 1, 3) if "--fail-if" in line else (None, 0)), said
        assert (said.out or "--format" in line) and "Traceback" not in said.err
