"""Root runs nothing from the current folder, mounts nothing that the machine sees, and works from the installed wheel
beside a project that has folders with our names."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import left_behind
from tests.forms import full
from tests.shared import WIRE

pytestmark = pytest.mark.netns
ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / ".package"  # the folder that holds `lossbench`
SAFE = [sys.executable, "-P", "-m", "lossbench.cli.main"]
HERE = {**os.environ, "PYTHONPATH": str(PACKAGE)}


SHORT = [
    f"--set={one}"
    for one in (
        "workload.options.steps=3",
        "topology.hosts=2",
        "probe.packets=4000",
        "workload.options.strategy=rps",
        "impair.0.profile=loss_10",
    )
]


# torch looks for dozens of modules that may not be installed.
TRIED = ("opt_einsum", "pandas", "tqdm", "triton", "gmpy2", "dill", "tensorrt", "pynvml")


def furnish(folder: Path) -> Path:
    """With every name that we import standing for something else."""
    folder.mkdir()
    ran = folder.parent / "ran"
    trap = f"open({str(ran)!r}, 'a').write(__file__ + chr(10))\n"
    for name in ("select", "json", "socket", "torch", "numpy", "random", "heapq", *TRIED):
        (folder / f"{name}.py").write_text(trap)
    for name in ("lossbench", "harness", "workloads", "netem_profiles"):
        (folder / name).mkdir()
        for file in ("__init__", "chatter", "nursery", "contract"):
            (folder / name / f"{file}.py").write_text(trap)
    for name in ("git", "nvidia-smi", "cc", "gcc", "modprobe", "sleep"):
        (folder / name).write_text(f"#!/bin/sh\necho $0 >> {ran}\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    return furnish(tmp_path / "project")


Trained = tuple[Path, subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A hostile folder, and a training that was run there."""
    folder = furnish(tmp_path_factory.mktemp("trained") / "project")
    command = [*SAFE, "run", "quickstart", *SHORT, "--json"]
    return folder, subprocess.run(command, cwd=folder, env=HERE, capture_output=True, text=True, timeout=300)


@pytest.mark.training
def test_nor_when_a_library_tries_a_module_that_is_not_installed(trained: Trained) -> None:
    """Ours are never run with the current folder on the path, not even at its end."""
    folder, done = trained
    assert not [line for line in trapped(folder).splitlines() if Path(line).stem in TRIED]
    assert done.returncode == 0, done.stderr


@pytest.mark.training
def test_the_process_that_forks_ranks_starts_from_the_package_too(trained: Trained) -> None:
    folder, done = trained
    assert trapped(folder) == ""
    assert all(one["columns"]["outcome"] == "valid" for one in json.loads(done.stdout)["summary"]), done.stderr


def trapped(folder: Path) -> str:
    path = folder.parent / "ran"
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("arguments", [["proof"], ["proof", *WIRE]], ids=["workload", "relay"])
def test_files_of_the_current_folder_are_never_executed(hostile: Path, arguments: list[str]) -> None:
    first = {**HERE, "PATH": f":.:{os.environ['PATH']}"}  # programs, too
    done = subprocess.run([*SAFE, "run", *arguments, "--json"], cwd=hostile, env=first, capture_output=True, text=True)
    assert trapped(hostile) == ""
    assert done.stdout, done.stderr  # what a busy machine makes of the wire's delay is not the subject
    assert json.loads(done.stdout)["summary"][0]["columns"]["outcome"] == "valid"


def test_nor_from_a_folder_of_the_path_that_holds_packages_with_our_names(hostile: Path, tmp_path: Path) -> None:
    from lossbench.processes import module_environment

    made = module_environment({"PYTHONPATH": f"{hostile}:{tmp_path}:{PACKAGE}"})["PYTHONPATH"]
    assert made == f"{tmp_path}:{PACKAGE}"


@pytest.mark.parametrize("python_path", ["", ".", f":{PACKAGE}", f"{PACKAGE}:"])
def test_nor_by_an_empty_or_relative_entry_of_the_path(hostile: Path, python_path: str) -> None:
    from lossbench.processes import module_environment

    made = module_environment({"PYTHONPATH": python_path})["PYTHONPATH"]
    assert made == str(PACKAGE)


@pytest.mark.parametrize("path", ["", ".", ".:bin", ":"])
def test_a_path_of_nothing_but_the_current_folder_is_the_systems(path: str) -> None:
    """An empty PATH means the current folder, too."""
    code = "from lossbench.processes import *; print(inherited()['PATH'])"
    done = subprocess.run([sys.executable, "-c", code], env={**HERE, "PATH": path}, capture_output=True, text=True)
    assert done.stdout.strip() == os.defpath


def test_nor_by_a_python_program_that_calls_us_whose_own_path_stays_as_it_was(hostile: Path) -> None:
    """As it was: only the command left the current folder out, and `lossbench.run` in one with a .git ran ./git."""
    (hostile / ".git").mkdir()
    code = (
        "import os; from pathlib import Path; from lossbench.results import machine, provenance\n"
        "machine.gpus(); machine.tools()\n"
        "provenance.git_state(Path.cwd()); print(os.environ['PATH'])"
    )
    path = f".:{os.environ['PATH']}"
    command, own = [sys.executable, "-P", "-c", code], {**HERE, "PATH": path}
    done = subprocess.run(command, cwd=hostile, env=own, capture_output=True, text=True)
    assert trapped(hostile) == "" and done.stdout.strip() == path, done.stderr


def test_nothing_is_started_or_looked_for_by_the_whole_path() -> None:
    """A start without an environment of its own looks along all of PATH; so does shutil.which. The command line's own
    PATH holds absolute folders alone."""
    found = []
    for path in (ROOT / "harness").rglob("*.py"):
        if path.is_relative_to(ROOT / "harness" / "cli") or path.name == "processes.py" or "workloads" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            of = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
            given = {keyword.arg for keyword in node.keywords}  # None: **keys
            starts = of == "subprocess" and node.func.attr in ("run", "Popen", "check_output", "call")
            if (starts and not given & {"env", None}) or (of == "shutil" and node.func.attr == "which"):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not found


WORD = re.compile(r"[a-z][a-z0-9_+-]*")
ASK = ("which", "execvp", "execvpe", "_run", "_asked")  # of a program by its name, as the first word they are given


def named_programs(path: Path) -> set[str]:
    """What a file starts or looks for by a name that stands in it: lists of words (where it starts anything), and what
    the functions above are given. Names that are put together elsewhere (qemu, `CC`, your own command) are not seen."""
    text, out = path.read_text(), set[str]()
    starts = "import subprocess" in text or "os.exec" in text
    for node in ast.walk(ast.parse(text)):
        words: list[ast.expr] = []
        if isinstance(node, ast.List) and starts and len(node.elts) > 1:
            words = node.elts
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            words = node.args if called in ASK else []
        first = words[0].value if words and isinstance(words[0], ast.Constant) else ""
        if isinstance(first, str) and WORD.fullmatch(first):
            out.add(first)
    return out


NO_PROGRAMS = {"bin"}  # a folder of the guest's first file system


def test_every_program_that_is_started_by_name_stands_in_the_table_of_security() -> None:
    """As it was: scontrol and sudo did not, dpkg by another name, and nothing held the two together."""
    page = (ROOT / "SECURITY.md").read_text()
    table = page[page.index("| program | for what | obeys |") :].split("\n\n")[0]
    listed = set(re.findall(r"[a-z][a-z0-9_+-]*", " ".join(row.split("|")[1] for row in table.splitlines()[2:])))
    started: dict[str, str] = {}
    for path in [*(ROOT / "harness").rglob("*.py"), *(ROOT / "workloads").rglob("*.py")]:
        started |= dict.fromkeys(named_programs(path), str(path.relative_to(ROOT)))
    assert {"git", "ssh", "srun", "sudo", "sbatch", "scontrol", "systemd-run", "nginx", "wrk", "dpkg"} <= set(started)
    assert {name: where for name, where in started.items() if name not in listed | NO_PROGRAMS} == {}


def test_a_users_own_program_finds_its_own_folder_and_only_that(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "helper.py").write_text("word = 'mine'\n")
    (tmp_path / "app" / "main.py").write_text(
        "import sys, helper, os\nassert helper.word == 'mine'\n"
        "assert os.getcwd() not in sys.path and '' not in sys.path, sys.path\n"
    )
    done = subprocess.run(
        [
            *SAFE,
            "run",
            "proof",
            "--set",
            'workload.command=["python","app/main.py"]',
            "--set",
            "workload.barrier=false",
            "--json",
        ],
        cwd=tmp_path,
        env=HERE,
        capture_output=True,
        text=True,
    )
    (one,) = json.loads(done.stdout)["summary"]
    assert one["columns"]["outcome"] == "valid", one["reasons"]


@full
@pytest.mark.training
def test_the_installed_wheel_works_in_a_project_with_folders_of_our_names(hostile: Path, tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    copy = tmp_path / "source"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(copy)], check=True)
    for changed in subprocess.check_output(
        ["git", "ls-files", "-mo", "--exclude-standard"], cwd=ROOT, text=True
    ).split():
        if (ROOT / changed).is_file():
            (copy / changed).parent.mkdir(parents=True, exist_ok=True)
            (copy / changed).write_bytes((ROOT / changed).read_bytes())
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(copy)], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)], check=True)
    ask = [str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
    site = Path(subprocess.check_output(ask, text=True).strip())
    (site / "dependencies.pth").write_text("\n".join(p for p in sys.path if p.endswith("-packages")))
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with zipfile.ZipFile(wheel) as inside:
        tops = {name.split("/")[0] for name in inside.namelist()}
        assert {name for name in tops if not name.endswith(".dist-info")} == {"lossbench"}
        assert "lossbench/workloads/transport/native/engine.h" in inside.namelist()
        assert wheel.name.endswith("-none-any.whl"), "one wheel serves all architectures"
    lossbench = [str(python.parent / "lossbench"), "run"]
    for suite in (["proof"], ["quickstart", *SHORT]):
        done = subprocess.run(
            [*lossbench, *suite, "--json"], cwd=hostile, env=plain, capture_output=True, text=True, timeout=250
        )
        assert trapped(hostile) == ""
        assert done.returncode == 0, done.stderr
    where = [str(python), "-P", "-c", "import lossbench.torch; print(lossbench.__file__)"]
    assert str(ROOT) not in subprocess.check_output(where, env=plain, text=True)


# --- mounts ----------------------------------------------------------------------------------------------------------

# A chroot into a folder that is no mount itself: "/" can't be made private there by its name.
IN_A_CHROOT = """
mount --make-rshared / && mount -t tmpfs tmpfs /run && mount --make-shared /run || exit 9
mkdir -p "$ROOT" && mount -t tmpfs tmpfs "$ROOT" && mount --make-shared "$ROOT" && mkdir "$ROOT/in" || exit 9
for one in /*; do
  if [ -L "$one" ]; then cp -P "$one" "$ROOT/in/"
  elif [ -d "$one" ]; then mkdir "$ROOT/in$one"; fi
done
for one in /*; do
  if [ -d "$one" ] && [ ! -L "$one" ]; then mount --rbind "$one" "$ROOT/in$one" || exit 9; fi
done
cut -d' ' -f5 /proc/self/mountinfo | sort > "$OUT/before"
chroot "$ROOT/in" sh -c 'cd "$HOME_OF_IT" && exec "$@"' sh "$@"
echo $? > "$OUT/code"
cut -d' ' -f5 /proc/self/mountinfo | grep -v /run/netns | sort > "$OUT/after"
"""


def test_in_a_chroot_under_shared_propagation_nothing_of_the_machine_is_covered(tmp_path: Path) -> None:
    """The mount namespace around it is the test's own; to what runs inside it is the machine."""
    command = [*SAFE, "run", "proof", "--json", "--out", str(tmp_path / "o")]
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", IN_A_CHROOT, "sh", *command],
        env={**HERE, "ROOT": str(tmp_path / "root"), "OUT": str(tmp_path), "HOME_OF_IT": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and (tmp_path / "code").read_text().strip() == "0", done.stderr
    assert json.loads(done.stdout)["verdict"] == "valid"
    before, after = ((tmp_path / name).read_text().splitlines() for name in ("before", "after"))
    assert [line for line in after if line.endswith(("/etc/hosts", "/sys"))] == [
        line for line in before if line.endswith(("/etc/hosts", "/sys"))
    ]
    assert left_behind() == []
