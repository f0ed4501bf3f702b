"""A campaign for a machine that nothing can be fetched from: wheels, data, its files, and the lines that install it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lossbench.errors import NotAbleError, UsageError
from lossbench.results import archive
from lossbench.runs.launch import program
from lossbench.runs.many import planning
from lossbench.runs.many.suite import Planned
from lossbench.spec.asking import campaign as campaigns
from lossbench.spec.asking import points

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
    _no_files_in_options(plans)
    brought = [Path(one.suite) for one in asked.run if _own(one.suite)] + _named_by(asked, file)
    content += [(path, f"{NAME}/{inside}") for inside, path in {_beside(path, file): path for path in brought}.items()]
    content += [(path, f"{NAME}/data/{path.name}") for name in sorted(names) if (path := _kept(name)) is not None]
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "install.sh")
        script.write_text(INSTALL % file.name, encoding="utf-8")
        script.chmod(0o755)
        return archive.pack([*content, (script, f"{NAME}/install.sh")], to, part_mib=part_mib)


def _own(suite: str) -> bool:
    return suite.endswith(".toml")


def _named_by(asked: campaigns.Campaign, file: Path) -> list[Path]:
    """Profiles and traces of the user's own: of experiments, and of what the campaign sets."""
    out, text = [], file.read_text(encoding="utf-8")
    for one in asked.run:
        settings = [*asked.set, *one.set]
        for named in points.files_named(points.find(one.suite), settings=settings, full=one.full):
            by_campaign = any(setting.endswith(f"={named.written}") for setting in settings)
            in_full = Path(named.written).is_absolute() and named.written in text
            if in_full or not (named.beside or by_campaign):
                raise NotAbleError(
                    f"{one.suite}: {named.written} would not be found there",
                    next_step="name it as seen from the file that names it",
                )
            out.append(named.path)
    return out


def _no_files_in_options(plans: Sequence[Planned]) -> None:
    """What they mean is their programs' business."""
    for found in (found for one in plans for found in one.programs()):
        for name, value in found.options.items():
            if isinstance(value, str) and Path(value).suffix and Path(value).is_file():
                text = f"{name} = '{value}' is a file of yours"
                raise NotAbleError(text, next_step="leave it out of this campaign: only profiles are bundled")


def _beside(own: Path, file: Path) -> str:
    """Its place in the bundle: the same, as seen from the campaign's file."""
    try:
        return str(own.resolve().relative_to(file.resolve().parent))
    except ValueError:
        raise NotAbleError(f"{own} lies elsewhere", next_step=f"put it beside {file}") from None


def _kept(name: str) -> Path | None:
    """Where the files of a data set are; None if it is embedded."""
    cache = os.environ.get("LOSSBENCH_CACHE") or Path(
        os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "lossbench"
    )
    own = os.environ.get("LOSSBENCH_DATA")
    places = [*([Path(own)] if own else []), Path(cache, "data")]
    return next((place / name for place in places if (place / name).is_dir()), None)
