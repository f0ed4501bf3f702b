"""Which tests can run on this machine, and what to say of those that can't."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest

from harness import machine, rootless


def _why_not(marker: str) -> str | None:
    if marker == "netns":
        if rootless.needed():
            return "needs root (network namespaces)"
        return machine.look().namespaces
    if marker == "training":
        try:
            import torch  # noqa: F401
        except ImportError:
            return "needs torch"
        return None
    if marker == "guest":
        return machine.look().able()["netem"]
    if marker == "gpu":
        return None if machine.gpus() else "needs a GPU"
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    reasons = {
        m: _why_not(m) for m in ("netns", "training", "guest", "gpu") if any(i.get_closest_marker(m) for i in items)
    }
    for item in items:
        for marker, reason in reasons.items():
            if reason is not None and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=f"{marker}: {reason}"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Skipped tests are never silent."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(
        report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr) for report in skipped
    )
    terminalreporter.write_line(f"skipped on this machine: {len(skipped)}")
    for reason, count in reasons.items():
        terminalreporter.write_line(f"  {count} x {reason}")


def _ours() -> set[str]:
    try:
        return {name for name in os.listdir("/run/netns") if name.startswith("lb-")}
    except FileNotFoundError:
        return set()


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test leaves the machine as it found it."""
    before = _ours()
    yield
    left = _ours() - before
    assert not left, f"namespaces left behind: {sorted(left)}"
