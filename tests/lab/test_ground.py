"""What a lab's machines are as ground for runs: what is theirs to say, and what is refused. No machine is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lossbench import api
from lossbench.cli.making import run
from lossbench.errors import NotAbleError, UsageError
from lossbench.net.lab.half import Half
from lossbench.runs.ground import About, Ground
from lossbench.runs.lab import ground
from lossbench.runs.lab.ground import LabGround, refuse_others, refuse_shared
from lossbench.runs.manifest import manifest
from lossbench.runs.many import planning
from lossbench.spec.asking import adhoc
from lossbench.spec.experiment import Experiment, Program
from lossbench.spec.lab import Lab, Machine
from lossbench.spec.topology import Placed, Topology
from lossbench.spec.userfile import check

OWN = {"hosts": 3, "family": "ipv4", "mtu": 1500}


class Fake:
    """A lab's ground, as far as a plan asks for it."""

    def placed(self, experiment: Experiment, asked: Any = ()) -> Experiment:
        refuse_others(experiment, OWN, asked)
        return experiment


def planned(folder: Path, sweep: str, *settings: str, full: bool = False) -> int:
    path = folder / "one.toml"
    path.write_text(f'name = "one"\n[topology]\nhosts = 4\n{sweep}\n')
    ground: Ground = Fake()  # type: ignore[assignment]
    found = planning.planned(
        str(path), list(settings), None, full=full, out=folder / "runs", resume=False, ground=ground
    )
    return len(found[2])


@pytest.mark.parametrize(
    ("sweep", "settings", "words"),
    [
        ('[sweep]\n"topology.mtu" = [1500, 9000]', (), "topology.mtu = 9000 is asked for, this lab has 1500"),
        ('[sweep]\n"topology.hosts" = [2, 3]', (), "topology.hosts = 2 "),
        ('[sweep]\n"topology.family" = ["ipv6"]', (), "topology.family = ipv6 "),
        ('[sweep]\narm = [{ name = "plain" }, { name = "jumbo", "topology.mtu" = 9000 }]', (), "topology.mtu = 9000"),
        ("", ("topology.hosts=8",), "topology.hosts = 8 "),
        ("", ("topology={ mtu = 9000, hosts = 3 }",), "topology.mtu = 9000 "),
    ],
)
def test_a_point_called_by_what_the_lab_is_not_is_refused(
    tmp_path: Path, sweep: str, settings: tuple[str, ...], words: str
) -> None:
    """As it was: it ran at the lab's own hosts, MTU and family, under the point's label, valid."""
    with pytest.raises(UsageError, match=words) as raised:
        planned(tmp_path, sweep, *settings)
    assert "--set topology." in raised.value.next_step and "\n" not in str(raised.value)


def test_of_a_suite_that_sweeps_what_is_the_labs_own_the_lab_runs_its_part_if_one_says_so(tmp_path: Path) -> None:
    """As it was: "leave it out of the sweep", which nobody can do of a suite of ours (collectives)."""
    mtus = '[sweep]\n"topology.mtu" = [1500, 9000]\n"workload.options.x" = [1, 2]'
    with pytest.raises(UsageError) as raised:
        planned(tmp_path, mtus)
    word = raised.value.next_step.split()[1]
    assert word == "topology.mtu=1500" and planned(tmp_path, mtus, word) == 2


def test_what_a_file_says_of_its_network_is_the_labs_to_say(tmp_path: Path) -> None:
    """No label names it."""
    assert planned(tmp_path, "") == 1
    assert planned(tmp_path, '[sweep]\n"topology.hosts" = [3]\n"workload.options.x" = [1, 2]') == 2
    assert planned(tmp_path, "", "topology.mtu=1500", "topology.hosts=3") == 1


def test_the_large_forms_own_sweep_is_looked_at(tmp_path: Path) -> None:
    large = '[full.sweep]\n"topology.mtu" = [9000]'
    assert planned(tmp_path, large) == 1
    with pytest.raises(UsageError, match=r"topology.mtu = 9000"):
        planned(tmp_path, large, full=True)


def test_hosts_on_the_command_line_must_be_as_many_as_machines(tmp_path: Path) -> None:
    ground: Ground = Fake()  # type: ignore[assignment]
    with pytest.raises(UsageError, match=r"topology.hosts = 8"):
        asked = adhoc.Asked(command=("true",), hosts="8")
        planning.planned(asked, [], None, full=False, out=tmp_path, resume=False, ground=ground)
    with pytest.raises(UsageError, match=r"topology.hosts = 4"):
        asked = adhoc.Asked(command=("true",), hosts="4")  # as it was: the usual number, so nobody had asked for it
        planning.planned(asked, [], None, full=False, out=tmp_path, resume=False, ground=ground)
    usual = adhoc.Asked(command=("true",), loss="3%")
    assert planning.planned(usual, [], None, full=False, out=tmp_path, resume=False, ground=ground)[2]


def test_an_interface_that_control_shares_is_impaired_only_if_one_says_so() -> None:
    """As it was: without SSH (Slurm) and without a default route on it nobody asked, whatever docs/lab.md said."""
    own = Placed(address="10.0.0.1", control="10.1.0.1", interface="eth1", control_interface="eth0")
    shared = Placed(address="10.0.0.2", control="10.0.0.2", interface="eth1", control_interface="eth1")
    refuse_shared([own, own], these_nics=False)
    refuse_shared([own, shared], these_nics=True)
    with pytest.raises(NotAbleError, match=r"h1's eth1.*--yes-these-nics"):
        refuse_shared([own, shared], these_nics=False)


ABOUT = {
    "machine": {"backends": ["ebpf"]},
    "facts": {},
    "interface": {"mtu": 1500, "mac": ""},
    "control": {"address": "10.1.0.1", "interface": "eth0"},
    "name": "eth1",
}


class Machines:
    """Two, of which h1 refuses its interface."""

    asked: list[tuple[str, dict[str, Any]]] = []
    closed = False

    def __init__(self, lab: Lab) -> None:
        self.open = {rank: Channel(rank) for rank in range(len(lab.machine))}

    def connect(self) -> None: ...

    def all_or_refuse(self) -> None: ...

    def all(self, what: Any) -> dict[int, Any]:
        return {rank: what(one) for rank, one in self.open.items()}

    def close(self) -> None:
        Machines.closed = True


class Channel:
    def __init__(self, rank: int) -> None:
        self.machine = Machine(ssh=f"n{rank}", interface="eth1", address=f"10.0.0.{rank}", past_rdma=True)

    def ask(self, what: str, **asked: Any) -> Any:
        if what == "network.examined":
            Machines.asked.append((self.machine.address, asked))
            if self.machine.address.endswith("1"):
                raise NotAbleError("h1: eth1: RDMA device mlx5_0")
        return {"machine.about": ABOUT["machine"], "facts.told": {}, "network.about": ABOUT["interface"]}.get(
            what, ABOUT["control"]
        )


def test_what_a_machine_refuses_of_its_interface_is_said_before_the_first_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it was: when the first point put its network there, with the suite's folder made and its proof begun."""
    monkeypatch.setattr(ground, "Channels", Machines)
    lab = check(Lab, {"machine": [{"ssh": f"n{n}", "interface": "eth1"} for n in range(2)]}, origin="test")
    with pytest.raises(NotAbleError, match="RDMA device"):
        LabGround(lab, these_nics=True)
    assert Machines.closed
    asked = {"interface": "eth1", "past_rdma": True, "this_nic": True}
    assert Machines.asked == [
        ("10.0.0.0", {**asked, "peers": ["10.0.0.1"]}),
        ("10.0.0.1", {**asked, "peers": ["10.0.0.0"]}),
    ]


@pytest.mark.netns
def test_an_agent_refuses_an_interface_as_building_on_it_would_and_changes_nothing() -> None:
    with pytest.raises(NotAbleError, match="lo: no Ethernet interface"):
        Half().examined(interface="lo", peers=["10.0.0.1"], past_rdma=False, this_nic=False)


def test_a_dry_run_counts_a_labs_machines_and_asks_none(tmp_path: Path) -> None:
    """As it was: four hosts, whatever the lab; and a rate that `run` refuses."""
    asked = adhoc.Asked(command=("true",), loss="3%")
    assert {one.experiment.topology.hosts for one in api.planned(asked, out=tmp_path, machines=3)} == {3}
    with pytest.raises(UsageError, match=r"topology.hosts = 4 is asked for, this lab has 3"):
        api.planned(adhoc.Asked(command=("true",), hosts="4"), out=tmp_path, machines=3)
    with pytest.raises(NotAbleError, match="asks for a rate"):
        api.planned(adhoc.Asked(command=("true",), rate="1gbit"), out=tmp_path, machines=3)


FACTS = {"kernel": "6.12", "cpus": 64, "gpus": ["H200"]}


def test_what_results_were_made_on_is_the_lab_and_not_its_controller(tmp_path: Path) -> None:
    """As it was: the manifest named the controller, the file's gpus and switch were stored nowhere, and the line that
    repeats the run was refused."""
    machine = {"ssh": "secret", "interface": "eth1", "address": "10.0.0.1", "gpus": 8}
    said = {"name": "rack", "ssh_config": "/home/me/config", "machine": [machine], "switch": {"name": "sn5600"}}
    said["switch"]["folder"] = "/home/me"  # type: ignore[index]
    ground = LabGround.__new__(LabGround)
    ground.lab, ground._again, ground._about = check(Lab, said, origin="test"), "--lab my.toml", {0: {"facts": FACTS}}
    here = Placed(address="10.0.0.1", control="10.1.0.1", interface="eth1")
    experiment = Experiment(name="x", topology=Topology(hosts=2, machines=(here, here)))
    found = manifest(experiment, 1, {}, "ebpf", "why", "0a1b", tmp_path, ground.about())
    assert found["machines"] == {"h0": FACTS} and found["lab"]["switch"]["name"] == "sn5600"
    assert found["lab"]["machine"][0]["gpus"] == 8
    assert not any(word in json.dumps(found["lab"]) for word in ("secret", "/home/me"))
    assert found["repeat"] == f"lossbench replay {tmp_path} --lab my.toml" and "own interface" in found["hook"]
    own = manifest(Experiment(name="x"), 1, {}, "ebpf", "why", "0a1b", tmp_path, About())
    assert "switch port" in own["hook"] and own["repeat"] == f"lossbench replay {tmp_path}"


RANKS = [{"ssh": f"n{n}", "interface": "eth1", "ranks": 8} for n in range(2)]
MINE = ("python", "train.py")


def test_several_ranks_in_a_labs_file_are_of_programs_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it was: with `ranks = 8` every suite was refused, and one file could not serve both."""
    ground = LabGround.__new__(LabGround)
    ground.lab = check(Lab, {"machine": RANKS}, origin="test")
    assert ground._ranks_each(Program(command=MINE)) == 8
    assert ground._ranks_each(Program(command=MINE, torchrun=2)) == 2, "who asks for a number gets it"
    assert ground._ranks_each(Program(name="training")) == 0
    assert "ranks = 8 in lab.toml is for programs of your own" in ground._one_rank(Program(name="training"))
    assert ground._one_rank(Program(command=MINE)) == ""
    path = tmp_path / "lab.toml"
    path.write_text("".join(f'[[machine]]\nssh = "n{n}"\ninterface = "eth1"\nranks = 8\n' for n in range(2)))
    run._say_one_rank(path, "quickstart")
    assert "one rank on each machine" in capsys.readouterr().err
    for suite in (None, "mine.toml"):
        run._say_one_rank(path, suite)
    assert capsys.readouterr() == ("", "")


def test_machines_with_different_numbers_of_ranks_are_refused_for_a_program_alone() -> None:
    ground = LabGround.__new__(LabGround)
    ground.lab = check(Lab, {"machine": [RANKS[0], {**RANKS[1], "ranks": 4}]}, origin="test")
    with pytest.raises(NotAbleError, match=r"different numbers of ranks \(4, 8\)"):
        ground._ranks_each(Program(command=MINE))
    assert ground._ranks_each(Program(name="training")) == 0
