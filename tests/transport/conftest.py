"""Ranks as threads of this process, on loopback: the protocol without a network to build."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from lossbench.workloads.collective.context import Group
from lossbench.workloads.transport.meeting import meet
from lossbench.workloads.transport.native import build
from lossbench.workloads.transport.plain.engine import PlainEngine
from lossbench.workloads.transport.policy import Policy


class Store:
    """What torch's TCPStore is to processes."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self._values[key] = value.encode()
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        with self._changed:
            assert self._changed.wait_for(lambda: key in self._values, timeout=120), key
            return self._values[key]


class Ranks:
    """All ranks of one group."""

    def __init__(self, groups: list[Group]) -> None:
        self.groups = groups

    def start(self, rank: int, job: Callable[[Group], Any]) -> Future[Any]:
        """In the endpoint's order of jobs."""
        group, future = self.groups[rank], Future[Any]()

        def run() -> None:
            try:
                future.set_result(job(group))
            except BaseException as error:
                future.set_exception(error)
                raise

        call = group.endpoint.begin(run, queued=True)

        def never_ran(done: Future[None]) -> None:
            if not future.done():
                future.set_exception(done.exception())

        assert call.queued is not None
        call.queued.add_done_callback(never_ran)
        return future

    def all(self, job: Callable[[Group], Any], *, only: list[int] | None = None) -> list[Any]:
        """The same job on every rank at once; results by rank."""
        futures = [self.start(rank, job) for rank in (range(len(self.groups)) if only is None else only)]
        return [future.result(120) for future in futures]

    def close(self) -> None:
        for group in self.groups:
            group.endpoint.close()


Make = Callable[..., Ranks]


def make_ranks(
    world: int,
    *,
    policy: Policy | None = None,
    addresses: list[str] | None = None,
    inside: Callable[[int], Any] | None = None,
    engines: list[str] | None = None,
) -> Ranks:
    """`inside(rank)`: a context in which that rank's socket is opened. `engines`: of which kind each rank's is."""
    store, groups = Store(), [None] * world  # type: ignore[list-item]
    errors: list[BaseException] = []

    def made(rank: int, address: str) -> Group:
        asked = policy or Policy()
        engine = PlainEngine if engines and engines[rank] == "plain" else None
        return Group(meet(store, rank=rank, world=world, address=address, policy=asked, engine=engine))

    def come(rank: int) -> None:
        address = addresses[rank] if addresses else "127.0.0.1"
        try:
            if inside is None:
                groups[rank] = made(rank, address)  # type: ignore[call-overload]
            else:
                with inside(rank):
                    groups[rank] = made(rank, address)  # type: ignore[call-overload]
        except BaseException as error:  # noqa: BLE001 - shown by the test
            errors.append(error)

    threads = [threading.Thread(target=come, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return Ranks(groups)  # type: ignore[arg-type]


@pytest.fixture(params=["compiled", "python"])
def pump(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both ways of moving packets must do the same."""
    if request.param == "compiled" and isinstance(build.load(), str):
        pytest.skip(f"no compiled pump: {build.load()}")
    if request.param == "python":
        monkeypatch.setattr(build, "load", lambda: "switched off by a test")
    yield request.param


@pytest.fixture
def ranks(pump: str) -> Iterator[Make]:
    """ranks(4, policy=...) -> four ranks that met."""
    del pump
    made: list[Ranks] = []

    def make(world: int, **keys: Any) -> Ranks:
        made.append(make_ranks(world, **keys))
        return made[-1]

    yield make
    for one in made:
        one.close()
