"""Which tests can run on this machine, and what to say of those that can't."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from lossbench.net import journal
from lossbench.net.host import rootless
from lossbench.net.impair import registry
from lossbench.net.kernel import Kernel
from lossbench.results import machine
from tests import nurseries, preloaded
from tests.explain import pytest_runtest_logreport, pytest_runtest_makereport, pytest_runtest_protocol  # noqa: F401 - hooks
from tests.explain import pytest_terminal_summary as explain
from tests.networks import build, profile_file  # noqa: F401 - fixtures for all
from tests.shared import all_ours, owner_of

# How long a machine takes to make an example is no matter of ours: a busy one was "too slow".
settings.register_profile("lossbench", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("lossbench")


def _why_not(marker: str) -> str | None:
    if marker == "netns":
        if rootless.needed():
            return "needs root (network namespaces)"
        return Kernel.tried().namespaces
    if marker == "training":
        try:
            import torch  # noqa: F401
        except ImportError:
            return "needs torch"
        return None
    if marker == "guest":
        return registry.able(Kernel.tried())["netem"]
    if marker == "clock" and os.environ.get("LOSSBENCH_CLOCK") != "instructions":
        return "needs a clock that counts instructions (lossbench vm run --instruction-clock)"
    if marker == "pair" and not os.environ.get("LOSSBENCH_PAIR"):
        return "two machines under QEMU (make test-guest-pair)"
    if marker == "gpu":
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
        return "the GPUs are hidden (CUDA_VISIBLE_DEVICES)" if hidden else None if machine.gpus() else "needs a GPU"
    return None


# Of the tests that run everywhere, those that every CI run repeats on the stock kernel.
ALSO_ON_STOCK = (
    "test_conformance.py::test_every_rule_at_a_hook_is_probed[ebpf]",
    "test_conformance.py::test_a_profile_is_in_force_as_asked[loss_5-netem]",
    "test_conformance.py::test_two_pairs_of_one_source_lose_apart[netem]",
    "test_conformance.py::test_a_change_in_place_tears_no_flow[netem]",
    "test_conformance.py::test_a_match_takes_its_packets_and_no_others[all of it-ipv6-netem]",
    "test_offloads.py::test_a_udp_segment_sender_loses_single_mtu_packets[netem]",
    "test_shaping.py::test_web_is_served_first_and_training_loses[prio]",
    "test_command.py::test_a_run_is_valid_and_stored_from_manifest_to_verdict",
    "test_nic.py::test_what_the_rule_dropped_is_what_the_receiver_misses_exactly[egress-netem]",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.endswith(ALSO_ON_STOCK):
            item.add_marker(pytest.mark.tier)
    used = [
        m for m in ("netns", "training", "guest", "gpu", "clock", "pair") if any(i.get_closest_marker(m) for i in items)
    ]
    reasons = {marker: _why_not(marker) for marker in used}
    for item in items:
        for marker, reason in reasons.items():
            if reason is not None and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=f"{marker}: {reason}"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """What the workers of `make test` import is imported once, and what pytest rewrites is rewritten once."""
    if not os.environ.get("LOSSBENCH_REAL") and any(spec.python == "tests/worker" for spec in specs):
        preloaded.begin()
        preloaded.rewrite(config)


def pytest_sessionstart(session: pytest.Session) -> None:
    """A worker that was forked has torch loaded, and so have the nurseries that it begins."""
    gc.disable()  # until everything is collected
    if os.environ.get("PYTEST_XDIST_WORKER") and preloaded.WHERE in os.environ and not os.environ.get("LOSSBENCH_REAL"):
        nurseries.fork_them()


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was collected stays to the end: nobody looks through it for what is garbage, here or in a fork."""
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Skipped tests are never silent."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(
        report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr) for report in skipped
    )
    terminalreporter.write_line(f"skipped on this machine: {len(skipped)}")
    for reason, count in reasons.items():
        terminalreporter.write_line(f"  {count} x {reason}")
    explain(terminalreporter)


def left_behind() -> list[str]:
    """Namespaces of ours that no living lossbench answers for. Others may run on this machine at the same time."""
    return sorted(_nobodys() - _FOUND)


_FOUND: set[str] = set()  # nobody's already when this test began: somebody else's run was killed


def _nobodys() -> set[str]:
    standing = {j.id for j in journal.networks() if j.is_lab()}
    return {n for n in all_ours() if n.split("-")[1] not in standing and (owner_of(n) in (None, os.getpid()))}


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Every test leaves the machine as it found it."""
    _FOUND.clear()
    _FOUND.update(_nobodys())
    yield
    left = left_behind()
    assert not left, f"namespaces left behind: {left}"
