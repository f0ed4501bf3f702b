"""Where systemd is the first process, watchdogs are its transient units."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forms import full
from tests.nic.managed import Managed, managed, missing
from tests.nic.wire import COMMAND, Wire, until

pytestmark = [full, pytest.mark.netns, pytest.mark.skipif(missing() is not None, reason=missing() or "")]
APPLY = ("nic", "apply", "nic0", "--profile", "loss_5")


@pytest.fixture
def machine(wire: Wire, tmp_path: Path) -> Iterator[Managed]:
    with managed(wire, tmp_path) as made:
        yield made


def test_watchdogs_are_units_of_systemd_and_give_the_nic_back_at_its_time(wire: Wire, machine: Managed) -> None:
    before = wire.snapshot()
    machine.lossbench(*APPLY, "--for", "10m")
    units = machine.units()
    assert len(units) == 2 and all(units.values()), "both, and not the processes that take a unit's place"
    for name, pid in units.items():
        assert f"system.slice/{name}" in machine.run("cat", f"/proc/{pid}/cgroup"), "no session takes it along"
    assert len(wire.links()) == 4
    machine.lossbench("nic", "revert", "nic0")
    machine.lossbench(*APPLY, "--for", "5s")
    assert until(lambda: wire.snapshot() == before and wire.links() == ["lo", "nic0"])
    assert until(lambda: not machine.units()), "they are forgotten, failed or not"


def test_one_that_is_killed_or_stopped_is_a_unit_again_and_that_one_does_the_work(wire: Wire, machine: Managed) -> None:
    before = wire.snapshot()
    machine.lossbench(*APPLY, "--for", "10m")
    first, second = sorted(machine.units())
    machine.run("systemctl", "kill", "--signal=KILL", first)
    assert until(lambda: len(machine.units()) == 2 and first not in machine.units()), machine.units()
    machine.run("systemctl", "stop", second)
    assert until(lambda: len(machine.units()) == 2 and second not in machine.units()), machine.units()
    assert len(wire.links()) == 4, "it stands meanwhile"
    machine.lossbench("nic", "revert", "nic0")
    assert wire.snapshot() == before and until(lambda: not machine.units())


def test_a_holder_that_is_killed_leaves_it_to_the_units(wire: Wire, machine: Managed) -> None:
    before = wire.snapshot()
    path = f"--setenv=PYTHONPATH={os.environ.get('PYTHONPATH', '')}"
    holder = [*COMMAND, *APPLY, "--", "sleep", "600"]
    machine.run("systemd-run", "--quiet", "--collect", "--unit=holder", path, *holder)
    assert until(lambda: len(machine.units()) == 2 and len(wire.links()) == 4)
    machine.run("systemctl", "kill", "--kill-whom=all", "--signal=KILL", "holder")
    assert until(lambda: wire.snapshot() == before and wire.links() == ["lo", "nic0"])
