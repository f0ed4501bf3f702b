"""A lossy network as a block of Python."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import lossbench
from lossbench.errors import UsageError
from tests.conftest import left_behind
from tests.nic.wire import until
from tests.shared import namespaces_of

pytestmark = pytest.mark.netns
SEND = "import socket; s = socket.socket(2, 2)\nfor _ in range(2000): s.sendto(b'x', ('{}', 9))"


def test_programs_run_in_its_hosts_lose_packets_and_end_with_the_block() -> None:
    with lossbench.Network(hosts=3, loss="20%") as net:
        assert net.host(1).run(["hostname", "-I"]).returncode in (0, 1, 2)
        other = net.host(2).address
        done = net.host(0).run([sys.executable, "-c", SEND.format(other)], timeout=60)
        assert done.returncode == 0, done.stderr
        dropped, seen = net.lost()
        assert seen >= 2000 and 0.1 < dropped / seen < 0.3
        assert f"loss 20%, seed 0, {dropped} of {seen} packets" in repr(net)
        assert f"<td>h2</td><td>{other}</td>" in net._repr_html_()
        assert net.prove(4000).judgement.status.word == "valid"
        sleeper = net.host(1).popen(["sleep", "600"])
        with pytest.raises(UsageError, match="hosts are 0 to 2"):
            net.host(3)
    assert sleeper.wait(timeout=60) != 0 and left_behind() == []
    with pytest.raises(UsageError, match="does not stand"):
        net.host(0)
    assert repr(net) == "<lossbench network: 3 hosts, loss 20%, seed 0, not standing>"
    assert net._repr_html_() == "<p>lossbench network: 3 hosts, loss 20%, seed 0, not standing</p>"


def test_a_mistake_in_its_words_builds_nothing() -> None:
    with pytest.raises(UsageError, match="^loss: 'much'"), lossbench.Network(loss="much"):
        pass
    assert left_behind() == []


def test_an_error_inside_the_block_takes_the_network_down() -> None:
    with pytest.raises(ZeroDivisionError), lossbench.Network(hosts=2):
        raise ZeroDivisionError
    assert left_behind() == []


def test_a_python_that_is_ended_inside_the_block_leaves_nothing_for_long(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(
        "import lossbench, time\n"
        "with lossbench.Network(hosts=2) as net:\n    net.host(0).popen(['sleep', '600'])\n    time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.PIPE)
    assert until(lambda: len(namespaces_of(process.pid)) == 3, seconds=60)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert left_behind() == []


def test_it_stands_in_a_notebook_too_where_an_event_loop_runs_already(tmp_path: Path) -> None:
    """pyroute2's own loop refused to run beside it: nothing of lossbench worked in Jupyter."""

    async def cell() -> str:
        with lossbench.Network(hosts=2, loss="10%") as net:
            net.host(0).run(["true"])
            assert net.prove(2000).judgement.status.word == "valid" and net.lost()[0] > 0
        found = lossbench.run("proof", settings=["workload.options.seconds=0.3", "probe.packets=4000"], out=tmp_path)
        return found.verdict if lossbench.doctor()["backend"]["name"] else ""

    assert asyncio.run(cell()) == "valid"
    assert left_behind() == []
