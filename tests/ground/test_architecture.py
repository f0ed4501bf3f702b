"""The rules of the house, as tests: who may import whom, how big things are, what importing does.

What a room may import it says itself, in the last line of its `__init__`."""

from __future__ import annotations

import ast
import graphlib
import importlib
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.shared import ROOT, python_files

FOLDERS = {"harness": "lossbench", "workloads": "lossbench.workloads"}
SOURCES = python_files("harness", "workloads")
GROUND = ("contract", "errors", "files", "processes", "api", "torch")
WITH_TORCH = ("workloads.collective", "workloads.allreduce", "workloads.sync", "workloads.training", "torch")
MOST_ENTRIES, MOST_ROOMS, MOST_LAYERS = 14, 15, 8


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module(path: Path) -> str:
    """`lossbench.net.star.links` for harness/net/star/links.py."""
    first, *rest = path.relative_to(ROOT).with_suffix("").parts
    return ".".join((FOLDERS[first], *rest)).removesuffix(".__init__")


MODULES = {module(path): path for path in SOURCES}


@cache
def imports(path: Path) -> frozenset[str]:
    """Modules of ours by their full name, others by what was written."""
    out: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            out |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            full = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            out |= {one if one in MODULES else node.module for one in full.values()}
    return frozenset(out)


def room(one: str) -> str:
    """The part of the top of the package that a module belongs to; "" is the package itself."""
    return one.split(".")[1] if one.startswith("lossbench.") else ""


def arrows(inside: str) -> dict[str, set[str]]:
    """Who imports whom among the direct parts of a package: a part is a folder with all that is in it, or a file."""
    depth = inside.count(".") + 1
    out: dict[str, set[str]] = {}
    for one, path in MODULES.items():
        if not one.startswith(f"{inside}."):
            continue
        part = one.split(".")[depth]
        seen = [m.split(".") for m in imports(path) if m.startswith(f"{inside}.") and m in MODULES]
        out.setdefault(part, set()).update(p[depth] for p in seen if len(p) > depth and p[depth] != part)
    return out


PACKAGES = sorted(m for m, path in MODULES.items() if path.name == "__init__.py")


def allowed(package: str) -> set[str] | None:
    """As its own `__init__` says; None if it says nothing."""
    text = " ".join((ast.get_docstring(ast.parse(MODULES[package].read_text())) or "").split())
    found = re.search(r"May import(?:: (?P<names>[^.]+(?:\.\w+[^.]*)*)\.| nothing of \w+\.)$", text)
    if found is None:
        return None
    return set((found["names"] or "").split(", ")) - {""}


# --- who may import whom -------------------------------------------------------------------------------------------


def test_every_room_says_what_it_may_import_and_keeps_to_it() -> None:
    rooms = [p for p in PACKAGES if p.count(".") == 1]
    assert len(rooms) >= 8
    for package in rooms:
        may = allowed(package)
        assert may is not None, f"{package} does not say what it may import"
        for one, path in MODULES.items():
            if one.startswith(f"{package}."):
                others = {room(m) for m in imports(path) if m in MODULES} - {package.split(".")[1], ""}
                assert others <= may, f"{one} imports {', '.join(sorted(others - may))}"


@pytest.mark.parametrize("package", [p for p in PACKAGES if p.count(".") == 2 and allowed(p) is not None])
def test_a_part_of_a_room_keeps_to_what_it_says(package: str) -> None:
    above, may = package.rpartition(".")[0], allowed(package)
    assert may is not None
    for one, path in MODULES.items():
        if one.startswith(f"{package}."):
            seen = {".".join(m.split(".")[1:3]) for m in imports(path) if m.startswith(f"{above}.") and m in MODULES}
            assert seen - {package.removeprefix("lossbench.")} <= may, f"{one} imports {seen}"


@pytest.mark.parametrize("package", PACKAGES)
def test_there_is_no_circle_at_any_height(package: str) -> None:
    graphlib.TopologicalSorter(arrows(package)).prepare()


def test_at_the_top_are_at_most_15_rooms_on_8_floors_and_nothing_loose() -> None:
    graph = arrows("lossbench")
    assert len(graph) <= MOST_ROOMS, sorted(graph)
    assert {part for part in graph if (ROOT / "harness" / f"{part}.py").exists()} == set(GROUND)
    floors: dict[str, int] = {}
    for part in graphlib.TopologicalSorter(graph).static_order():
        floors[part] = 1 + max((floors[below] for below in graph[part]), default=0)
    assert max(floors.values()) <= MOST_LAYERS, floors
    order = ["spec", "net", "proof", "simulate", "runs", "api", "cli"]
    assert [floors[part] for part in order] == sorted(floors[part] for part in order)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_folder_holds_more_than_about_a_dozen_entries(package: str) -> None:
    entries = [
        e for e in MODULES[package].parent.iterdir() if e.name[0] not in "._" and e.suffix not in (".toml", ".c")
    ]
    assert len(entries) <= MOST_ENTRIES or package == "lossbench", [e.name for e in entries]


def test_the_harness_never_imports_torch_or_workloads() -> None:
    for one, path in MODULES.items():
        if room(one) not in ("workloads", "torch"):
            assert not {m for m in imports(path) if m.split(".")[0] == "torch" or room(m) in ("workloads", "torch")}, (
                one
            )


def test_workloads_import_nothing_of_the_harness_but_the_contract() -> None:
    for one, path in MODULES.items():
        if room(one) == "workloads":
            assert {room(m) for m in imports(path) if m in MODULES} <= {"workloads", "contract", ""}, one


@pytest.mark.parametrize("one", ["lossbench.errors", "lossbench.contract"])
def test_the_door_needs_nothing_but_the_standard_library(one: str) -> None:
    assert {m.split(".")[0] for m in imports(MODULES[one])} <= set(sys.stdlib_module_names)


def test_one_room_per_outside_library() -> None:
    homes = {
        "scapy": ("lossbench.proof.probe.datagram",),
        "pyroute2": ("lossbench.net.", "lossbench.runs.run"),  # runs.run tells its errors from others
        "typer": ("lossbench.cli.",),
        "scipy": ("lossbench.report.",),
        "matplotlib": ("lossbench.report.",),
        "jinja2": ("lossbench.report.",),
        "polars": ("lossbench.report.", "lossbench.results.samples"),
    }
    for one, path in MODULES.items():
        for library, home in homes.items():
            if library in {m.split(".")[0] for m in imports(path)}:
                assert one.startswith(home), f"{library} in {one}"


# --- transitively: what is really loaded ---------------------------------------------------------------------------

LOADED = "import importlib, sys\nfor m in {modules!r}: importlib.import_module(m)\nprint(' '.join(sys.modules))"
AWAY = """import sys
class Away:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {libraries!r}:
            raise ModuleNotFoundError(f'{{name}} was taken away', name=name)
sys.meta_path.insert(0, Away())
"""


def loaded_by(*modules: str, without: tuple[str, ...] = ()) -> set[str]:
    code = AWAY.format(libraries=without) + LOADED.format(modules=modules)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def below(package: str) -> list[str]:
    return [one for one in MODULES if one == package or one.startswith(f"{package}.")]


def test_results_and_reports_work_without_kernel_libraries_and_torch() -> None:
    for library in ("matplotlib", "jinja2", "scipy", "polars"):
        pytest.importorskip(library)
    loaded_by(*below("lossbench.report"), *below("lossbench.results"), without=("pyroute2", "scapy", "torch", "typer"))


PURE = [
    *below("lossbench.spec"),
    *(one for one in below("lossbench.proof") if not one.startswith("lossbench.proof.probe")),
    "lossbench.proof.probe.flows",
    "lossbench.net.counters",
    "lossbench.net.conservation",
]


def test_what_decides_does_not_act_all_the_way_down() -> None:
    """No kernel, no process, no packet: not even by way of something that is imported."""
    acting = ("pyroute2", "scapy", "torch", "lossbench.net.host", "lossbench.net.star", "lossbench.net.impair")
    seen = loaded_by(*PURE, without=("pyroute2", "scapy", "torch", "rich", "typer"))
    assert not {m for m in seen if m.startswith((*acting, "lossbench.runs", "lossbench.processes"))}


def test_the_path_of_a_run_loads_no_report_library() -> None:
    seen = loaded_by("lossbench.cli.app", "lossbench.cli.making.run", *below("lossbench.runs"))
    assert not seen & {"torch", "scipy", "matplotlib", "polars", "jinja2"}


def test_importing_has_no_effect() -> None:
    """Nothing is printed, no signal handler set, no thread started, no child made; and nothing heavy is loaded."""
    heavy = (*(f"lossbench.{part}" for part in WITH_TORCH), "lossbench.report")
    light = [one for one in MODULES if not one.startswith(heavy) and not one.endswith("__main__")]
    code = (
        "import importlib, signal, threading, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may ignore it\n"
        "handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]\n"
        f"for m in {light!r}: importlib.import_module(m)\n"
        "assert handlers == [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "for heavy in ('torch', 'scipy', 'matplotlib', 'polars', 'jinja2'): assert heavy not in sys.modules, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


def test_the_names_of_before_are_other_names_for_the_same_modules_and_warn() -> None:
    code = (
        "import warnings; warnings.simplefilter('error')\n"
        "try: import harness.contract\n"
        "except DeprecationWarning as said: assert 'import lossbench' in str(said)\n"
        "else: raise SystemExit('no warning')\n"
        "warnings.simplefilter('ignore')\n"
        "import sys, harness.contract, lossbench.contract\n"
        "import workloads.transport.policy, lossbench.workloads.transport.policy\n"
        "assert harness.contract is lossbench.contract and harness.contract.__name__ == 'lossbench.contract'\n"
        "assert workloads.transport.policy is lossbench.workloads.transport.policy\n"
        "files = [m.__file__ for n, m in set(sys.modules.items()) if n.startswith('lossbench') and m.__file__]\n"
        "assert len(files) == len(set(files))\n"
        "import harness.experiment, harness.store, workloads.transport.codec, lossbench.spec.experiment\n"
        "assert harness.experiment is lossbench.spec.experiment\n"
        "old = [m for n, m in sys.modules.items() if n.split('.')[0] in ('harness', 'workloads')]\n"
        "assert old and all(m.__name__.startswith('lossbench') for m in old)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_command_of_before_still_runs() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "harness.cli.main", "--version"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("lossbench "), done.stderr


# --- how big, how called -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_file_has_at_most_300_lines_and_a_function_at_most_70(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 300
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 70, f"{node.name} is too long"


def test_no_room_is_called_utils() -> None:
    assert not [p for p in SOURCES if p.stem in ("utils", "util", "helpers", "manager", "misc", "common")]


def test_no_registry_address_and_no_path_of_a_machine_is_in_the_project() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    for file in listed.stdout.split():
        if (ROOT / file).is_dir() or not (ROOT / file).exists():  # a link to a folder; a file that is being moved
            continue
        text = (ROOT / file).read_text(errors="replace")
        for forbidden in ("/wo" + "rk/", "pypi" + ".org", "file://" + "/"):
            assert forbidden not in text, f"{forbidden} in {file}"


@pytest.mark.parametrize("path", sorted((ROOT / "tests" / "bench").glob("[a-z]*.py")), ids=lambda path: path.stem)
def test_a_measuring_program_finds_every_name_that_it_imports_from_us(path: Path) -> None:
    """CI runs two of them after the tests, people the others: no test imports them, so a name that moved broke them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "lossbench":
            found = importlib.import_module(node.module)
            for alias in node.names:
                if not hasattr(found, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")


@pytest.mark.parametrize("path", sorted((ROOT / "tests" / "bench").glob("[a-z]*.py")), ids=lambda path: path.stem)
def test_a_measuring_program_that_is_called_as_a_file_finds_the_tests(path: Path) -> None:
    """Python puts a file's own folder first on its path, not the one that it is called from."""
    text = path.read_text()
    if f"python tests/bench/{path.name}" in text and re.search(r"^from tests", text, re.MULTILINE):
        head, _, _ = text.partition("\nfrom tests")
        assert "sys.path" in head, "its folder is first on the path, and there is no tests/ in it"
