"""`lossbench init`: the file that the same words would have run."""

from __future__ import annotations

from pathlib import Path

import typer

from lossbench.cli.console import say
from lossbench.cli.making import words
from lossbench.errors import UsageError


def init(
    ctx: typer.Context,
    file: Path = typer.Argument(Path("experiment.toml"), help="To be written; never over one that is there."),
    hosts: str = words.HOSTS,
    loss: str = words.LOSS,
    burst: str = words.BURST,
    delay: str = words.DELAY,
    rate: str = words.RATE,
    profile: str = words.PROFILE,
    sweep: list[str] = words.SWEEP,
    time_limit: str = words.TIME_LIMIT,
    settings: list[str] = words.SETTINGS,
    seeds: int | None = words.SEEDS,
    ranks: int | None = words.RANKS,
    backend: str | None = words.BACKEND,
    data_dir: Path | None = words.DATA_DIR,
    capture: bool = words.CAPTURE,
) -> None:
    """Write an experiment as a file to edit, with comments.

    Example: lossbench init mine.toml --hosts 4 --sweep loss=0,1,5 -- python train.py
    """
    from lossbench.files import disk_errors
    from lossbench.spec.asking import adhoc, written

    words.say_of_shares(loss, sweep)
    condition = {"hosts": hosts, "loss": loss, "burst": burst, "delay": delay, "rate": rate, "profile": profile}
    command = words.command_of(ctx) or adhoc.EXAMPLE
    asked = adhoc.Asked(command=command, **condition, sweep=tuple(sweep), time_limit=time_limit)
    settings += words.as_settings(capture=capture, backend=backend, data_dir=data_dir, ranks=ranks)
    settings += [f"seeds={seeds}"] if seeds is not None else []
    text = written.text(asked, settings=settings, file=file)
    if file.suffix != ".toml":
        raise UsageError(f"{file} is no .toml file", next_step="lossbench init mine.toml")
    if file.exists():
        raise UsageError(f"{file} is there already", next_step="give another name")
    with disk_errors(file, full="free some space"), open(file, "x", encoding="utf-8") as target:
        target.write(text)
    say(f"{file} written; lossbench run {file}")
