"""A campaign for a machine that nothing can be fetched from: wheels, data, its files, and the lines that install it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from lossbench.errors import NotAbleError, UsageError
from lossbench.results import archive
from lossbench.runs.launch import program
from lossbench.runs.many import planning
from lossbench.spec.asking import campaign as campaigns

NAME = "lossbench-bundle"
INSTALL = """#!/bin/sh
# Installs what lies here; nothing is fetched. torch must be there already. EXTRAS=[text]: fewer than [report,text].
set -e
cd "$(dirname "$0")"
${PYTHON:-python3} -m pip install -q --no-index --find-links wheels "lossbench${EXTRAS-[report,text]}"
echo "now: LOSSBENCH_DATA=$PWD/data LOSSBENCH_OFFLINE=1 lossbench campaign $PWD/%s --minutes 25"
"""


def make(file: Path, *, wheels: Path, data: Path | None, to: Path, part_mib: int) -> list[Path]:
    """Everything the campaign's runs need, checked and fetched here first. Returns the files written."""
    if not any(wheels.glob("lossbench-*.whl")):
        raise UsageError(f"{wheels} has no wheel of lossbench", next_step="make wheelhouse")
    asked = campaigns.load(file)
    plans = [one for part in planning.parts_of(file) for one in part.plan]
    if data is not None:
        os.environ["LOSSBENCH_DATA"] = str(data.resolve())  # for those who look whether all is there
    program.prepare([found for one in plans for found in one.programs()])
    if own := next((found.command for one in plans for found in one.programs() if found.command), None):
        raise NotAbleError(
            f"'{' '.join(own)}' is a program of yours", next_step="leave it out of this campaign: only ours is bundled"
        )
    names = {str(found.options.get("data", "")) for one in plans for found in one.programs()} - {""}
    content = [(wheels, f"{NAME}/wheels"), (file, f"{NAME}/{file.name}")]
    content += [(Path(one.suite), f"{NAME}/{_beside(one.suite, file)}") for one in asked.run if _own(one.suite)]
    content += [(path, f"{NAME}/data/{path.name}") for name in sorted(names) if (path := _kept(name)) is not None]
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "install.sh")
        script.write_text(INSTALL % file.name, encoding="utf-8")
        script.chmod(0o755)
        return archive.pack([*content, (script, f"{NAME}/install.sh")], to, part_mib=part_mib)


def _own(suite: str) -> bool:
    return suite.endswith(".toml")


def _beside(suite: str, file: Path) -> str:
    try:
        return str(Path(suite).resolve().relative_to(file.resolve().parent))
    except ValueError:
        raise NotAbleError(f"{suite} lies elsewhere", next_step=f"put it beside {file}") from None


def _kept(name: str) -> Path | None:
    """Where the files of a data set are; None if it is embedded."""
    cache = os.environ.get("LOSSBENCH_CACHE") or Path(
        os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "lossbench"
    )
    own = os.environ.get("LOSSBENCH_DATA")
    places = [*([Path(own)] if own else []), Path(cache, "data")]
    return next((place / name for place in places if (place / name).is_dir()), None)
