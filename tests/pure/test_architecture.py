"""The rules of the house, as tests: who may import whom, how big things are, what importing does."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted([*(ROOT / "harness").rglob("*.py"), *(ROOT / "workloads").rglob("*.py")])
WITH_TORCH = tuple(f"workloads/{room}/" for room in ("collective", "collectives", "data", "models", "sync", "training"))
STANDARD_ONLY = ("harness/errors.py", "harness/contract.py")
# Decide, never act: no kernel, no process, no netlink.
PURE = (
    "lossmodel",
    "profile",
    "topology",
    "experiment",
    "placement",
    "verdict",
    "statistics",
    "proof",
    "evidence",
    "userfile",
)
ACTING = ("pyroute2", "socket", "subprocess", "ctypes", "harness.net.network", "harness.net.star", "harness.run")


def imports(path: Path) -> set[str]:
    out: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            out |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            out.add(node.module)
            out |= {f"{node.module}.{alias.name}" for alias in node.names}
    return out


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_file_has_at_most_300_lines_and_a_function_at_most_70(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 300
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 70, f"{node.name} is too long"


@pytest.mark.parametrize("path", [ROOT / p for p in STANDARD_ONLY], ids=name)
def test_the_door_needs_nothing_but_the_standard_library(path: Path) -> None:
    for module in imports(path):
        assert module.split(".")[0] in sys.stdlib_module_names, module


def test_the_harness_never_imports_torch_or_workloads() -> None:
    for path in (ROOT / "harness").rglob("*.py"):
        assert not {m.split(".")[0] for m in imports(path)} & {"torch", "workloads"}, path


def test_workloads_import_nothing_of_the_harness_but_the_contract() -> None:
    for path in (ROOT / "workloads").rglob("*.py"):
        for module in imports(path):
            if module.split(".")[0] == "harness":
                assert module.startswith("harness.contract"), (path, module)


@pytest.mark.parametrize("module", PURE)
def test_what_decides_does_not_act(module: str) -> None:
    found = imports(ROOT / "harness" / f"{module}.py")
    assert not {m for m in found for acting in ACTING if m == acting or m.startswith(acting + ".")}


def test_one_room_per_outside_library() -> None:
    report = ("harness/report/",)
    homes = {
        "scapy": ("harness/net/probe/datagram.py",), "typer": ("harness/cli",), "scipy": report, "matplotlib": report,
        "jinja2": report, "polars": (*report, "harness/samples.py"),
    }  # fmt: skip
    for path in SOURCES:
        for library, home in homes.items():
            if library in {m.split(".")[0] for m in imports(path)}:
                assert name(path).startswith(home), f"{library} in {name(path)}"


def test_arrows_go_down_only() -> None:
    """cli above suite and labs above run above net above the pure modules."""
    below = {
        "harness/report": ("harness.cli", "harness.run", "harness.suite", "harness.net", "harness.watch"),
        "harness/net": (
            "harness.cli",
            "harness.run",
            "harness.suite",
            "harness.labs",
            "harness.watch",
            "harness.ranks",
        ),
        "harness/run.py": ("harness.cli", "harness.suite", "harness.labs"),
        "harness/suite.py": ("harness.cli", "harness.labs"),
        "harness/labs.py": ("harness.cli", "harness.suite"),
    }
    for path in SOURCES:
        for place, forbidden in below.items():
            if name(path).startswith(place):
                assert not {m for m in imports(path) if m.startswith(forbidden)}, name(path)


def test_no_room_is_called_utils() -> None:
    assert not [p for p in SOURCES if p.stem in ("utils", "util", "helpers", "manager", "misc", "common")]


def test_importing_has_no_effect() -> None:
    """Nothing is printed, no signal handler set, no thread started, no child made; and nothing heavy is loaded."""
    heavy = (*WITH_TORCH, "harness/report/")
    light = [p for p in SOURCES if p.name != "__main__.py" and not name(p).startswith(heavy)]
    modules = [name(p)[:-3].replace("/", ".").removesuffix(".__init__") for p in light]
    code = (
        "import importlib, signal, threading, sys\n"
        "handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]\n"
        f"for m in {modules!r}: importlib.import_module(m)\n"
        "assert handlers == [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "for heavy in ('torch', 'scipy', 'matplotlib', 'polars', 'jinja2'): assert heavy not in sys.modules, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


def test_no_registry_address_and_no_path_of_a_machine_is_in_the_project() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    for file in listed.stdout.split():
        text = (ROOT / file).read_text(errors="replace")
        for forbidden in ("/wo" + "rk/", "pypi" + ".org", "file://" + "/"):
            assert forbidden not in text, f"{forbidden} in {file}"
