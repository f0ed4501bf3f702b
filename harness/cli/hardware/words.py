"""What is asked of a machine's interface, or of those of a lab, as it is typed: the condition, by name, from a file or
in words; addresses and ports."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING

import typer

from lossbench.errors import UsageError

if TYPE_CHECKING:
    from lossbench.spec.profile import Profile

PROFILE = typer.Option("", "--profile", help="Network condition: a name (lossbench profile list) or a file.")
LOSS = typer.Option("", "--loss", metavar="3%", help="Instead of a profile: share of packets to lose.")
BURST = typer.Option("", "--burst", metavar="8", help="With --loss: mean number of packets lost in a row.")
DELAY = typer.Option("", "--delay", metavar="20ms", help="Delay every packet by this much (netem).")
RATE = typer.Option("", "--rate", metavar="1gbit", help="Rate at which packets pass (netem).")


def condition(*, profile: str = "", loss: str = "", burst: str = "", delay: str = "", rate: str = "") -> Profile:
    """An interface has no link of ours: a rate is a part of what is put on it."""
    from lossbench.spec import profile as profiles
    from lossbench.spec.asking import adhoc
    from lossbench.spec.userfile import check

    if not (profile or loss or burst or delay or rate):
        step = "--profile loss_1 (lossbench profile list), or --loss 3%, --delay 20ms, --rate 1gbit"
        raise UsageError("which condition?", next_step=step)
    found, _ = adhoc.condition(loss=loss, burst=burst, delay=delay, profile=profile)
    made = profiles.load(found) if isinstance(found, str) else check(profiles.Profile, found, origin="command line")
    if not rate:
        return made
    if made.rate_mbit is not None:
        raise UsageError(f"profile {made.name} has a rate of its own", next_step="leave --rate out")
    mbit = adhoc.rate_mbit(rate)
    word = f"rate_{mbit:g}_mbit"
    named = word if made.name == adhoc.CLEAN else f"{made.name}_{word}"
    return made.model_copy(update={"name": named, "rate_mbit": mbit})


def network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError:
        step = "10.0.0.7 or 10.0.0.0/24"
        raise UsageError(f"'{text[:60]}' is neither an address nor a network", next_step=step) from None


def ports(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", text)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 0 < first <= last <= 65535:
        raise UsageError(f"'{text[:40]}' is no port and no range of ports", next_step="29500 or 29400-29500")
    return first, last
