"""What a web client is told, checked once."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from lossbench.workloads.errors import OptionError
from lossbench.workloads.web.sizes import Sizes

PORT = 8080
TOGETHER = "topology.rate_mbit, options.rate(s), seconds and factor of web, options.mbit of replay, shaping.target_ms"
_UNTIL = re.compile(r"p(\d\d(?:\.\d+)?)\s*=\s*(\d+(?:\.\d+)?)\s*%")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Rates are of all hosts together."""

    rate: float = 100.0  # requests a second, of all hosts
    rates: tuple[float, ...] = ()  # instead: one after the other, `seconds` each
    seconds: float = 20.0  # of arrivals; of each rate. 0: until told to end
    bytes: int = 100_000  # of a response
    sizes: str = ""  # instead: a distribution of sizes.csv
    most_bytes: int = 0  # sizes are cut there; 0: not
    page: int = 0  # requests of a page, all at once; 0: requests come by themselves
    loop: Literal["open", "closed"] = "open"
    users: int = 1  # of a host, in a closed loop: each asks again as soon as it was answered
    connections: Literal["keep-alive", "fresh"] = "keep-alive"
    timeout_s: float = 20.0  # of a request, from its intended time
    most_open: int = 1000  # requests of a host under way; more are dropped, and counted
    port: int = PORT
    factor: float = 1.0  # how many times slower than what is modelled: rate * factor is its rate
    link_mbit: float = 1000.0  # of what is modelled: by the factor it must be the links' own rate
    until: str = ""  # p99=5%: end when its 95 % interval is that narrow; `seconds` is the longest it may take
    stop_mean_ms: float = 0.0  # of several rates: the first whose mean is above it is the last
    stop_ratio: float = 0.0  # of several rates: the first with p99/p50 above it is held on to
    hold_s: float = 0.0  # how long it is held
    requests: int = 0  # of several rates: each lasts until so many were asked for, at most `seconds`

    def plan(self) -> tuple[tuple[float, float], ...]:
        """(rate, seconds) of every phase."""
        if not self.requests:
            return tuple((rate, self.seconds) for rate in self.rates or (self.rate,))
        return tuple((rate, min(self.seconds, self.requests / rate)) for rate in self.rates)

    def held(self, rate: float) -> float:
        """How long the last of several rates is held."""
        return max(self.hold_s, self.requests / rate) if self.hold_s else 0.0

    def drawn(self) -> Sizes:
        return Sizes.named(self.sizes, most_bytes=self.most_bytes) if self.sizes else Sizes.fixed(self.bytes)

    def precision(self) -> tuple[float, float] | None:
        """(quantile, relative half-width) that `until` asks for."""
        found = _UNTIL.fullmatch(self.until.strip()) if self.until else None
        return (float(found[1]) / 100, float(found[2]) / 100) if found else None


def read_options(given: Mapping[str, Any]) -> Options:
    known = {field.name for field in fields(Options)}
    unknown = sorted(set(given) - known - {"server"})
    if unknown:
        raise OptionError(f"web: no option '{unknown[0]}' (there are {', '.join(sorted(known))})")
    values = {key: value for key, value in given.items() if key in known}
    try:
        options = Options(**{**values, "rates": tuple(float(one) for one in values.get("rates", ()))})
        _check(options)
    except (TypeError, ValueError) as error:
        raise OptionError(f"web: {error}") from None
    return options


def _check(options: Options) -> None:
    for name in ("rate", "bytes", "users", "timeout_s", "most_open", "factor", "link_mbit"):
        if not getattr(options, name) > 0:
            raise OptionError(f"web: {name} must be above 0")
    if any(rate <= 0 for rate in options.rates) or list(options.rates) != sorted(set(options.rates)):
        raise OptionError("web: rates must be above 0, each higher than the one before")
    if options.seconds < 0 or (options.seconds == 0 and (options.rates or options.until)):
        raise OptionError("web: seconds must be given for several rates, and as the longest time for until")
    for name, allowed in (("loop", ("open", "closed")), ("connections", ("keep-alive", "fresh"))):
        if getattr(options, name) not in allowed:
            raise OptionError(f"web: {name} is one of {', '.join(allowed)}")
    if options.requests < 0 or (options.requests and not options.rates):
        raise OptionError("web: requests (of each rate) can't be below 0, and goes with rates")
    if options.until and options.rates:
        raise OptionError("web: until is for one rate; several have stop_mean_ms and stop_ratio")
    if options.loop == "closed" and options.users > options.most_open:
        raise OptionError("web: most_open must be as many as users at least")
    if options.until and options.precision() is None:
        raise OptionError(f"web: until = '{options.until}' is not like p99=5%")
    if options.loop == "closed" and (options.page or options.rates):
        raise OptionError("web: a closed loop has users, not pages or rates")
    options.drawn()


def misfit(folder: Path, options: Options) -> str:
    """Why the factor is not that of this run's links, with what to do: rates are divided by hand, and one that was
    changed alone would give every row a wrong label. Empty where it is, where nothing is scaled, or links have no rate.
    `folder`: the run's; on a lab's machines there is no manifest in it, and the end of the run tells."""
    topology: dict[str, Any] = {}
    with suppress(OSError, ValueError, KeyError, TypeError):
        topology = dict(json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["experiment"]["topology"])
    rates = {topology.get(f"{way}_rate_mbit") or topology.get("rate_mbit") for way in ("uplink", "downlink")} - {None}
    should = options.link_mbit / options.factor
    rate, link, factor = (
        min((float(one) for one in rates if one is not None), default=should),
        options.link_mbit,
        options.factor,
    )
    if options.factor == 1 or abs(rate / should - 1) <= 0.001:
        return ""
    said = f"links of {rate:g} Mbit/s are not those of {link:g} Mbit/s at a factor of {factor:g} ({should:g} Mbit/s)"
    return f"{said}: change together {TOGETHER}; or say link_mbit = {rate * factor:g}"
