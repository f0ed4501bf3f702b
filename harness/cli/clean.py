"""`lossbench clean`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from lossbench.cli.console import say
from lossbench.net.host import rootless
from lossbench.results.naming import counted

if TYPE_CHECKING:
    from lossbench.net.journal import Journal, Removed


def clean(
    every: bool = typer.Option(False, "--all", help="Also what stands: networks (net up), profiles on interfaces."),
) -> None:
    """Remove what crashed runs left behind: namespaces with their links and filters, processes, temporary files.

    Only what lossbench's own journal says it made; running experiments of others are left alone."""
    from lossbench.net.guest import boot, image

    for folder in boot.sweep(image.cache_folder()):
        say(f"removed {folder}, left by a guest that was killed")
    if rootless.needed():
        say("nothing more to clean: without root all ends with the run (sudo for runs made with sudo)")
        return
    from lossbench.errors import RunError
    from lossbench.net import journal
    from lossbench.net.nic import takedown
    from lossbench.runs.interrupt import held

    removed = []
    for one in journal.networks():
        if not one.folder.exists():
            continue  # another clean was faster
        stands = _stands(one)
        with journal.abandoned(
            one, wait_s=journal.WAIT_S if every and stands and not _is_attached(one) else 0.0
        ) as free:
            if not free and not (every and stands and _is_nic(one)):
                say(f"{one.id}: in use by a running lossbench; not touched")
            elif not free:
                with held():
                    removed.append(takedown.take_away(one, holder_lives=True))
                _say_removed(removed[-1], held=True)
            elif stands and not every:
                say(f"{one.id}: {stands}, or clean --all)")
            else:
                with held():
                    removed.append(takedown.take_away(one))
                _say_removed(removed[-1])
    if not removed:
        say("nothing to clean")
    left = [text for one in removed for text in one.failed]
    if left:
        raise RunError("; ".join(left), next_step="what is left stays in the journal: lossbench clean tries again")


def _stands(one: Journal) -> str:
    """What its maker wants to stand; empty for what a crash left."""
    from lossbench.net import made
    from lossbench.net.nic import state, watchdog

    if one.is_lab():
        return f"a standing network, left alone (lossbench net down --net {one.id}"
    nic = state.read(one)
    if nic is not None and any(map(made.exists, one.made())) and not watchdog.surely_due(one, nic):
        return f"on {nic.interface} for a while, left alone (lossbench nic revert {nic.interface}"
    return ""


def _is_nic(one: Journal) -> bool:
    """Whoever holds it loses it as to a watchdog, and goes on without."""
    from lossbench.net.nic import state, takedown

    return state.read(one) is not None and not takedown.revoked(one)


def _is_attached(one: Journal) -> bool:
    from lossbench.net.nic import state

    found = state.read(one)
    return found is not None and found.phase == state.ATTACHED


def _say_removed(removed: Removed, *, held: bool = False) -> None:
    say(_removed(removed, held=held))


def _removed(removed: Removed, *, held: bool = False) -> str:
    return (
        f"{removed.network}: removed {counted(len(removed.names), 'thing')} ({', '.join(removed.names) or 'none'}), "
        f"ended {counted(len(removed.pids), 'process', 'processes')}, "
        f"{'kept its journal' if removed.failed or held else 'deleted its temporary files'}"
    )
