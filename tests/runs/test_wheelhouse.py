"""Files that install lossbench where there is no index and torch is there already."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tests.forms import full

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.training


def closure(name: str, found: dict[str, metadata.Distribution]) -> dict[str, metadata.Distribution]:
    """A package and all that it needs here."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key not in found:
        try:
            found[key] = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # for another system
            return found
        for wanted in found[key].requires or ():
            if "extra ==" not in wanted:
                closure(re.split(r"[^\w.-]", wanted, maxsplit=1)[0], found)
    return found


def linked(folder: Path, packages: dict[str, metadata.Distribution]) -> None:
    """As if they alone were installed there."""
    folder.mkdir()
    for one in packages.values():
        for file in one.files or ():
            top = file.parts[0]
            if top != ".." and not (folder / top).exists():
                (folder / top).symlink_to(Path(str(one.locate_file(top))))


@full
def test_a_wheelhouse_installs_without_an_index_where_torch_is(tmp_path: Path) -> None:
    house, venv = tmp_path / "wheelhouse", tmp_path / "venv"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    made = subprocess.run(
        ["make", "-s", "wheelhouse", f"PYTHON={version}", f"WHEELHOUSE={house}", f"VENV={sys.prefix}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    if made.returncode and "No matching distribution" in made.stderr:
        pytest.skip("no package index can be reached from here")
    assert made.returncode == 0, made.stderr
    assert not list(house.glob("torch-*")), "torch is the machine's own"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    linked(tmp_path / "torch alone", closure("torch", {}))
    (site,) = (venv / "lib").glob("python3*/site-packages")
    (site / "torch.pth").write_text(str(tmp_path / "torch alone"))
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PIP_NO_INDEX": "1"}
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "--python", str(venv / "bin" / "python")]
    install = ["install", "--no-index", "--find-links", str(house), "lossbench[report]"]
    subprocess.run([*pip, *install], check=True, env=plain, cwd=tmp_path)
    doctor = subprocess.run(
        [str(venv / "bin" / "lossbench"), "schema", "experiment"], capture_output=True, env=plain, cwd=tmp_path
    )
    assert doctor.returncode == 0, doctor.stderr
    ask = "import lossbench.torch, lossbench.report, scipy, polars; print(lossbench.__file__)"
    where = subprocess.check_output([str(venv / "bin" / "python"), "-c", ask], env=plain, text=True, cwd=tmp_path)
    assert where.startswith(str(venv)), where
