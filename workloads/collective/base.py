"""What the lossy backend is made of: names torch asks for, the endpoint behind it, and how a call becomes a job."""

from __future__ import annotations

import atexit
import fcntl
import os
import queue
import socket
import struct
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work as C10dWork

from lossbench.contract import Door
from lossbench.workloads.collective import exchange
from lossbench.workloads.collective.reduce import Group, is_lossy
from lossbench.workloads.collective.staging import Pinned, Staged
from lossbench.workloads.transport.half import Account
from lossbench.workloads.transport.meeting import meet
from lossbench.workloads.transport.policy import Policy

SIOCGIFADDR = 0x8915
TELLERS = 4  # callbacks of results that may wait for further results, one inside the other


class Base(dist.ProcessGroup):
    """One group of ranks. `counters`, `accounts`, `set_step` are what a strategy needs beyond torch's interface."""

    def __init__(
        self, store: Any, rank: int, size: int, timeout: timedelta, policy: Policy, door: Door | None = None
    ) -> None:
        """`door`: of this rank, where a process hosts several."""
        super().__init__(rank, size)
        self._name, self._desc = "", ""
        door = door or Door.from_environment()
        self._endpoint = meet(
            _Keys(store),
            rank=rank,
            world=size,
            address=own_address(door),
            port=door.port,
            token=door.token or None,
            policy=policy,
            cores=cores_per_rank(size),
        )
        self._group = Group(self._endpoint)
        self._pinned = Pinned()
        self._step: int | None = None
        self._results: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        for _ in range(TELLERS):
            threading.Thread(target=_tell_all, args=(self._results,), name="lossy-results", daemon=True).start()
        self._calls = 0
        # torch wants an inner backend to exist; point-to-point goes by it, over TCP.
        self._inner = inner_gloo(dist.PrefixStore("inner", store), rank, size, timeout)
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            self._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, self._inner)
        self._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        # Peers may still need an acknowledgement of ours when this process has nothing more to do.
        atexit.register(_close, weakref.ref(self._endpoint))

    # --- beyond torch's interface --------------------------------------------------------------------------------

    @property
    def policy(self) -> Policy:
        return self._endpoint.policy

    @property
    def counters(self) -> dict[str, Any]:
        """Packets by fate; `payload_bytes` arrived by the lossy way."""
        return {
            **self._endpoint.counters.as_json(),
            "overflow": self._endpoint.overflow(),
            "strangers": self._endpoint.strangers(),
        }

    @property
    def accounts(self) -> list[Account]:
        """Of the latest lossy call: what arrived, per half."""
        return self._group.accounts

    def set_step(self, step: int | None) -> None:
        """The training step in the header of every packet from now on; None: the number of the call."""
        self._step = step
        self._group.since_step.clear()

    def accounts_of_step(self) -> list[Account]:
        """Of all lossy calls since `set_step`, the latest 256."""
        return list(self._group.since_step)

    # --- names ---------------------------------------------------------------------------------------------------

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "lossy"

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        self._desc = description

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._desc

    def shutdown(self) -> None:
        self._endpoint.close()

    def abort(self) -> None:
        self._endpoint.close(patience_s=0.0)

    # --- running -------------------------------------------------------------------------------------------------

    def _submit(self, tensors: Any, job: Callable[[], None]) -> Any:
        """Run in the endpoint's thread, after what was submitted before and what the tensors' streams still do."""
        future: torch.futures.Future[Any] = torch.futures.Future()
        events = events_of(tensors)
        self._calls += 1
        step = self._calls if self._step is None else self._step  # now: ranks agree on the order of calls, not on time

        def run() -> None:
            self._endpoint.step = step
            try:
                with torch.no_grad(), ExitStack() as streams:
                    for device, event in events:
                        streams.enter_context(torch.cuda.stream(self._pinned.stream(device)))
                        self._pinned.stream(device).wait_event(event)
                    job()
                    for device, _ in events:
                        self._pinned.stream(device).synchronize()
            except BaseException as error:
                self._finish(partial(future.set_exception, error))
                raise
            self._finish(partial(future.set_result, tensors))

        self._endpoint.submit(run).add_done_callback(partial(self._never_ran, future))
        return Work(future)

    def _finish(self, tell: Callable[[], None]) -> None:
        """In another thread: what waits for a result may call the next collective and wait for that one."""
        self._results.put(tell)

    def _never_ran(self, future: Any, done: Any) -> None:
        """The group broke before it was this job's turn."""
        error = done.exception()
        if error is not None and not future.done():
            self._finish(lambda: None if future.done() else future.set_exception(error))

    def _lossy(self, staged: Staged, op: str) -> bool:
        small = staged.array.nbytes < self.policy.reliable_below_bytes
        return is_lossy(staged.codec, op) and not small

    def barrier(self, opts: Any = None) -> Any:
        del opts
        return self._submit([], lambda: exchange.barrier(self._group))


class Work(C10dWork):
    """A collective under way. Its errors reach whoever waits: torch's own wrapper of a future swallows them."""

    def __init__(self, future: torch.futures.Future[Any]) -> None:
        super().__init__()
        self._future = future

    def wait(self, timeout: timedelta | None = None) -> bool:
        del timeout  # a group's own patience ends it (policy: timeout_s)
        self._future.wait()
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._future.done()

    def is_success(self) -> bool:
        return self._future.done() and self.exception() is None

    def exception(self) -> BaseException | None:
        if not self._future.done():
            return None
        try:
            self._future.value()
        except BaseException as error:  # noqa: BLE001 - it is handed on
            return error
        return None

    def result(self) -> Any:
        return self._future.wait()

    def get_future(self) -> torch.futures.Future[Any]:
        return self._future


class _Keys:
    """torch's store under our own prefix."""

    def __init__(self, store: Any) -> None:
        self._store = dist.PrefixStore("lossy", store)

    def set(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        return bytes(self._store.get(key))


def inner_gloo(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Connects when it is first used: on a link that loses 40 % even that may take longer than anybody waits."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timeout
    where = {"interface": interface} if interface else {"hostname": socket.gethostname()}
    try:
        options._devices = [dist.ProcessGroupGloo.create_device(**where, lazy_init=True)]
    except (TypeError, RuntimeError):  # an older torch, or a name that does not resolve: as torch itself would
        return dist.ProcessGroupGloo(store, rank, size, timeout)
    return dist.ProcessGroupGloo(store, rank, size, options)


def _tell_all(results: queue.SimpleQueue[Callable[[], None]]) -> None:
    while True:
        results.get()()


def _close(reference: Any) -> None:
    endpoint = reference()
    if endpoint is not None:
        endpoint.close()


def own_address(door: Door) -> str:
    """Under lossbench the data link's; elsewhere that of LOSSBENCH_INTERFACE or GLOO_SOCKET_IFNAME, or of whatever
    interface leads to MASTER_ADDR."""
    if door.addresses:
        return door.addresses[door.rank]
    interface = door.interface or os.environ.get("GLOO_SOCKET_IFNAME", "")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        if interface:
            name = struct.pack("256s", interface.encode()[:15])
            try:
                return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), SIOCGIFADDR, name)[20:24])
            except OSError as error:
                raise OSError(error.errno, f"interface {interface} has no IPv4 address: {error.strerror}") from None
        probe.connect((os.environ.get("MASTER_ADDR", "127.0.0.1"), 9))
        return str(probe.getsockname()[0])


def cores_per_rank(size: int) -> float:
    """Namespaces of one machine share its cores; torchrun says how many ranks this machine has."""
    here = int(os.environ.get("LOSSBENCH_RANKS_HERE", os.environ.get("LOCAL_WORLD_SIZE", str(size))))
    return len(os.sched_getaffinity(0)) / max(here, 1)


def events_of(tensors: Any) -> list[tuple[torch.device, torch.cuda.Event]]:
    """One event on the current stream of each CUDA device that the tensors live on."""
    flat = [t for entry in tensors for t in (entry if isinstance(entry, list) else [entry])]
    out = []
    for device in {t.device for t in flat if t.device.type == "cuda"}:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        out.append((device, event))
    return out
