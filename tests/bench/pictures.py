"""The pictures of README and docs: five pages in a browser (wide, in the dark, as narrow as a telephone), and a figure.

python tests/bench/pictures.py [NAME=RUN ...]     NAME: quickstart, sweep, program, crash or collectives

RUN is the folder of a stored suite. What is not given is run, and kept in build/pictures for the next time: as root, on
a quiet machine, else its times carry a `?`. Needs a browser (apt-get install chromium). Then look at docs/pictures."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOSSBENCH = [sys.executable, "-m", "lossbench.cli.main"]
KEPT = ROOT / "build" / "pictures"
SHOWN = ROOT / "docs" / "pictures"
FIGURE = "quickstart-drift.png"
CRASH = """
import os, sys
print("loading shard 3 of 8", flush=True)
sys.exit("shard 3: checksum does not match") if os.environ["RANK"] == "1" else None
"""
RUNS = {
    "quickstart": ["quickstart", "--seeds", "3"],
    "sweep": ["--hosts", "2", "--sweep", "loss=0,1,2,5", "--seeds", "3", "--", "python", "examples/ddp.py", "60"],
    "program": ["--hosts", "2", "--loss", "3%", "--", "python", "examples/trainer.py", "--steps", "50"],
    "crash": ["--hosts", "2", "--loss", "3%", "--", "python", "-c", CRASH],
    "collectives": ["collectives", "--set", "topology.mtu=1500", "--set", "workload.options.mb=1", "--seeds", "3"],
}
LOOKS = {  # what a picture's name ends in: the window, and what the browser is told of light and dark
    "": (1400, 900, []),
    "-dark": (1400, 900, ["--blink-settings=preferredColorScheme=0"]),
    "-narrow": (390, 900, []),
}


def names() -> set[str]:
    return {f"page-{run}{look}.png" for run in RUNS for look in LOOKS} | {FIGURE}


def stored(name: str) -> str:
    """The suite that shows it, run if it was not."""
    folder = KEPT / name
    if not list(folder.glob("*/summary.json")):
        command = [*LOSSBENCH, "run", "--out", str(folder), *RUNS[name]]
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        if status not in (0, 1, 3):  # the crash is 1
            sys.exit(f"{name}: lossbench ended with status {status}")
    return str(max(folder.glob("*/summary.json")).parent)


def photograph(page: Path, name: str, browser: str) -> None:
    for look, (width, height, told) in LOOKS.items():
        shot = SHOWN / f"page-{name}{look}.png"
        command = [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
        ]
        command += [f"--user-data-dir={page.parent / 'profile'}", f"--window-size={width},{height}", *told]
        subprocess.run([*command, f"--screenshot={shot}", page.as_uri()], check=True, capture_output=True, timeout=120)


def main() -> None:
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    if unknown := set(given) - set(RUNS):
        sys.exit(f"no picture of {', '.join(sorted(unknown))}; there are {', '.join(RUNS)}")
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        sys.exit("needs a browser: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        for name in RUNS:
            page, plots = Path(folder) / f"{name}.html", Path(folder) / name
            words = ["report", given.get(name) or stored(name), "--html", str(page)]
            words += ["--plots", str(plots)] if name == "quickstart" else []
            subprocess.run([*LOSSBENCH, *words], check=True, stdout=subprocess.DEVNULL)
            page.write_text(page.read_text(encoding="utf-8").replace(f"{ROOT}/", ""), encoding="utf-8")
            photograph(page, name, browser)
            if name == "quickstart":
                shutil.copy(plots / "drift.png", SHOWN / FIGURE)


if __name__ == "__main__":
    main()
