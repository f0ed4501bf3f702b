"""What every place offers: this machine's own stack, a namespace; a machine over SSH will be the third."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lossbench.net import journal
from lossbench.net.host import namespaces
from lossbench.net.host.enter import BOOT_ID, write_host_files
from lossbench.net.host.place import Here, Namespace, Place
from lossbench.spec.topology import Topology

pytestmark = pytest.mark.netns


@pytest.fixture(params=["here", "namespace"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "here":
        yield Here("h0")
        return
    name = f"lb-place-{secrets.token_hex(4)}"
    namespaces.create(name)
    yield Namespace("h0", name)
    namespaces.remove(name)


def stack_of(path: str = "/proc/thread-self/ns/net") -> int:
    return Path(path).stat().st_ino


def test_a_thread_steps_in_and_comes_back(place: Place) -> None:
    before = stack_of()
    with place.inside():
        inside = stack_of()
    assert stack_of() == before
    assert inside == (stack_of(place.where) if place.where else before)


def test_netlink_sockets_and_files_belong_to_the_place(place: Place) -> None:
    with place.netlink() as link:
        names = {one.get_attr("IFLA_IFNAME") for one in link.get_links()}
    listed = {line.split(":")[0].strip() for line in place.read("/proc/net/dev").splitlines()[2:]}
    assert names == listed
    with place.inside():
        own = socket.if_nameindex()
    assert names == {name for _, name in own}
    with place.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        assert one.getsockname()[1] == 0


def test_a_program_runs_where_nobody_may_set_a_hostname(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was under podman without root: "h0 can't be entered: sethostname: Operation not permitted"."""
    call = namespaces.call

    def refused(function: str, *arguments: object) -> None:
        if function == "sethostname":
            raise PermissionError(1, "sethostname: Operation not permitted")
        call(function, *arguments)

    monkeypatch.setattr(namespaces, "call", refused)
    name = f"lb-place-{secrets.token_hex(4)}"
    namespaces.create(name)
    try:
        (tmp_path / "hosts").write_text("127.0.0.1 localhost\n")
        with open(tmp_path / "log", "wb") as output:
            running = Namespace("h0", name).start(
                ["true"], environment=dict(os.environ), output=output, hosts_path=tmp_path / "hosts"
            )
            while running.poll() is None:
                time.sleep(0.01)
            assert running.poll() == 0, (tmp_path / "log").read_text()
    finally:
        namespaces.remove(name)


def test_each_host_has_a_boot_id_of_its_own_and_is_known_to_be_of_this_machine(tmp_path: Path) -> None:
    """As it was: torch.distributed.rpc (TensorPipe) found the same one on all hosts, and sent through shared memory."""
    hosts = write_host_files(tmp_path, Topology(hosts=2))
    found = [journal.boot_id()]
    for host in ("h0", "h1", "h1"):
        name = f"lb-place-{secrets.token_hex(4)}"
        namespaces.create(name)
        try:
            with open(tmp_path / "log", "wb") as output:
                running = Namespace(host, name).start(
                    ["cat", str(BOOT_ID)], environment=dict(os.environ), output=output, hosts_path=hosts
                )
                until = time.monotonic() + 60
                while running.poll() is None:
                    assert time.monotonic() < until
                    time.sleep(0.01)
            found.append((tmp_path / "log").read_text().strip())
            if found[-1] == found[0]:
                pytest.skip("nothing may be mounted over files of /proc here")
        finally:
            namespaces.remove(name)
    assert len(set(found)) == 3 and found[2] == found[3] and len({len(one) for one in found}) == 1
    assert all(journal.same_boot(one, found[0]) for one in found) and journal.boot_id() == found[0]
    assert not journal.same_boot(found[0], "another") and not journal.same_boot("here", "another")


def test_a_program_runs_there_and_its_end_is_told(place: Place, tmp_path: Path) -> None:
    code = "import os; print(os.stat('/proc/self/ns/net').st_ino); raise SystemExit(3)"
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n")
    with open(tmp_path / "log", "wb") as output:
        running = place.start(
            [sys.executable, "-c", code], environment={}, output=output, hosts_path=tmp_path / "hosts"
        )
    limit = time.monotonic() + 60
    while running.poll() is None and time.monotonic() < limit:
        time.sleep(0.01)
    running.reap()
    assert running.poll() == 3
    assert int((tmp_path / "log").read_text()) == (stack_of(place.where) if place.where else stack_of())
