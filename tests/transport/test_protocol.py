"""Who is slow, gone, a stranger or a liar: the protocol goes on, or ends with one clear error."""

from __future__ import annotations

import gc
import socket
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lossbench.contract import HEADER_BYTES, Header
from lossbench.workloads.collective import exchange, halves
from lossbench.workloads.collective.reduce import Group, all_reduce
from lossbench.workloads.errors import PolicyError, TransportError
from lossbench.workloads.transport import meeting
from lossbench.workloads.transport.native import native
from lossbench.workloads.transport.packet import wire
from lossbench.workloads.transport.packet.codec import CODECS
from lossbench.workloads.transport.policy import Deadlines, Policy
from tests.shared import dissect_frame

from .conftest import Make, make_ranks

F32 = CODECS["float32"]
QUICK = Policy(send_thread="off", deadline_min_ms=100, deadline_max_ms=300, timeout_s=2)


def summed(group: Group, count: int = 20_000) -> np.ndarray:
    mine = np.full(count, float(group.endpoint.rank + 1), np.float32)
    all_reduce(group, mine, codec=F32)
    return mine


def test_a_slow_peer_is_not_a_loss(ranks: Make) -> None:
    """It enters long after the deadline of the others would have cut it off; its thread says that it lives."""
    made = ranks(3, policy=Policy(send_thread="off", deadline_min_ms=700, deadline_max_ms=700))
    early = [made.start(rank, summed) for rank in (0, 1)]
    time.sleep(2.5)
    late = made.start(2, summed)
    for future in (*early, late):
        assert np.array_equal(future.result(20), np.full(20_000, 6.0, np.float32))
    assert all(group.endpoint.counters.cut == 0 for group in made.groups)


def test_packets_of_a_later_half_are_kept(ranks: Make) -> None:
    """One rank submits five calls at once, the other comes later and finds what was sent."""
    made = ranks(2)
    first = [made.start(0, lambda g: summed(g, 50_000)) for _ in range(5)]
    time.sleep(0.2)
    second = [made.start(1, lambda g: summed(g, 50_000)) for _ in range(5)]
    for future in (*first, *second):
        assert np.array_equal(future.result(20), np.full(50_000, 3.0, np.float32))


def test_survivors_go_on_without_a_peer_that_is_gone(ranks: Make) -> None:
    made = ranks(3, policy=QUICK)
    made.all(summed)
    made.groups[2].endpoint.close()
    times = []
    for _ in range(6):
        start = time.monotonic()
        results = made.all(summed, only=[0, 1])
        times.append(time.monotonic() - start)
        for group, got in zip(made.groups, results, strict=False):
            third = slice(13334, 20_000)  # the lost owner's block keeps N times the own value
            assert np.all(got[third] == 3.0 * (group.endpoint.rank + 1))
            np.testing.assert_allclose(got[:13334], 3 * 1.5)
    assert max(times) < 10 * 2 * QUICK.deadline_max_ms / 1000, "the deadline bounds every call"
    assert made.groups[0].endpoint._mail.absent() == {2}
    assert times[-1] < times[0], "a peer that gives no sign is no longer waited for"


def test_a_reliable_transfer_to_a_peer_that_is_gone_ends_with_one_sentence(ranks: Make) -> None:
    made = ranks(2, policy=QUICK)
    made.all(exchange.barrier)
    made.groups[1].endpoint.close()
    with pytest.raises(
        TransportError, match=r"rank 0: no sign of life from rank 1 for 2 s \(timeout_s\): did it end\?"
    ):
        made.all(exchange.barrier, only=[0])


def test_alone_a_rank_goes_on_for_a_while_and_then_says_so(ranks: Make) -> None:
    made = ranks(2, policy=QUICK)
    made.groups[1].endpoint.close()
    start = time.monotonic()
    assert np.all(made.all(summed, only=[0])[0][10_000:] == 2.0), "the lost owner's block keeps N times the own value"
    assert made.groups[0].accounts[0].ended == "deadline"
    with pytest.raises(TransportError, match="no sign of life from rank 1"):
        while time.monotonic() - start < 30:
            made.all(summed, only=[0])


def test_a_call_that_fails_on_one_rank_ends_on_all_and_says_so_ever_after(ranks: Make) -> None:
    """In the middle of halves the ranks no longer agree which comes next: never go on with wrong numbers."""
    made = ranks(2, policy=QUICK)
    made.all(exchange.barrier)

    def fails(group: Group) -> None:
        group.endpoint.open(half=1, reliable=True)
        raise ValueError("a job of ours went wrong")

    good = made.start(0, exchange.barrier)
    with pytest.raises(ValueError, match="went wrong"):
        made.start(1, fails).result(10)
    with pytest.raises(TransportError, match="broke in an earlier call: a job of ours went wrong"):
        made.start(1, exchange.barrier).result(10)
    made.groups[1].endpoint.close()
    with pytest.raises(TransportError, match="no sign of life from rank 1|gave this call up"):
        good.result(20)


def test_a_mistake_before_anything_was_sent_breaks_nothing(ranks: Make) -> None:
    made = ranks(2)

    def mistaken(group: Group) -> None:
        raise NotImplementedError("no such type")

    for rank in (0, 1):
        with pytest.raises(NotImplementedError):
            made.start(rank, mistaken).result(10)
    assert np.array_equal(made.all(summed)[0], np.full(20_000, 3.0, np.float32))


def test_an_error_of_the_sending_thread_reaches_the_caller(ranks: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ranks(2, policy=Policy(send_thread="on", deadline_max_ms=300, timeout_s=2))
    pump = made.groups[0].endpoint._pump

    def breaks(half: object) -> bool:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(made.groups[0].endpoint._sender, "_send_round", breaks)
    with pytest.raises(OSError, match="Invalid argument"):
        made.start(0, summed).result(10)
    assert pump is made.groups[0].endpoint._pump


def test_a_closed_group_takes_no_more_calls(ranks: Make) -> None:
    made = ranks(2)
    made.close()
    with pytest.raises(TransportError, match="this group is closed"):
        made.all(summed)


def test_one_bad_half_does_not_mislead_the_measured_loss(ranks: Make) -> None:
    """The normaliser `expected` divides by 1-p: p is measured over packets, and bounded."""
    group = ranks(1).groups[0]
    from lossbench.workloads.transport.half import Account

    def half(arrived: int, total: int) -> Account:
        bits = np.arange(total) < arrived
        return Account(half=0, step=0, ended="markers", seconds=0, arrived={1: bits}, cut=0, lost=0, withheld=0)

    group.heard(half(0, 1))
    assert group.loss < 0.06
    for _ in range(50):
        group.heard(half(900, 1000))
    assert group.loss == pytest.approx(0.1, abs=0.005)
    for _ in range(300):
        group.heard(half(0, 1000))
    assert group.loss == 0.9


def test_memory_of_a_finished_call_is_not_held(ranks: Make) -> None:
    made = ranks(2)
    watched = []

    def job(group: Group) -> None:
        mine = np.ones(50_000, np.float32)
        watched.append(weakref.ref(mine))
        all_reduce(group, mine, codec=F32)

    for _ in range(12):
        made.all(job)
    time.sleep(0.3)
    gc.collect()
    assert sum(reference() is not None for reference in watched) <= 2


def test_a_stranger_spraying_the_port_changes_nothing(ranks: Make) -> None:
    made = ranks(2)
    generator = np.random.default_rng(1)
    target = made.groups[0].endpoint._link.address
    token = made.groups[0].endpoint._token
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for number in range(600):
            noise = generator.integers(0, 256, int(generator.integers(0, 1472))).astype(np.uint8).tobytes()
            if number % 3 == 0:  # our header, another run's token, or a rank that does not exist
                other = token if number % 2 else token + 1
                noise = Header(kind=number % 7, token=other, source=number % 11, destination=0).pack() + noise[:100]
            stranger.sendto(noise, target)
            if number % 100 == 0:
                for got in made.all(summed):
                    assert np.array_equal(got, np.full(20_000, 3.0, np.float32))
    made.all(exchange.barrier)
    assert made.groups[0].endpoint.strangers() > 300
    assert made.groups[0].endpoint.overflow() == 0


def test_a_datagram_with_the_right_token_from_another_port_does_not_count(ranks: Make, pump: str) -> None:
    """As it was: one such datagram turned 3.0 into 1000001.0."""
    made = ranks(2)
    end = made.groups[0].endpoint
    prefix = wire.Prefix(
        kind=wire.DATA,
        token=end._token,
        source=1,
        destination=0,
        step=0,
        half=0,
        dtype=wire.DTYPES["float32"],
        sequence=0,
    ).pack()
    poison = np.full((end.datagram_bytes - HEADER_BYTES) // 4, 1e6, np.float32).tobytes()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.bind(("127.0.0.1", 0))
        for chunk in range(64):
            for sequence in range(4):
                head = wire.Prefix(
                    kind=wire.DATA,
                    token=end._token,
                    source=1,
                    destination=0,
                    step=0,
                    half=sequence % 2,
                    dtype=wire.DTYPES["float32"],
                    sequence=sequence,
                ).pack()
                stranger.sendto(wire.control(head, block=0, chunk=chunk, body=poison), end._link.address)
        stranger.sendto(wire.control(prefix, block=64, chunk=64), end._link.address)
        for got in made.all(summed):
            assert np.array_equal(got, np.full(20_000, 3.0, np.float32))
        stranger.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody answers a stranger
            stranger.recv(2048)
    assert end.strangers() >= 257 and end.counters.received[1] < 257


def test_a_member_does_not_speak_for_another(ranks: Make, pump: str) -> None:
    made = ranks(3)
    end, other = made.groups[0].endpoint, made.groups[2].endpoint
    poison = np.full((end.datagram_bytes - HEADER_BYTES) // 4, 1e6, np.float32).tobytes()
    for chunk in range(8):
        head = wire.Prefix(
            kind=wire.DATA,
            token=end._token,
            source=1,
            destination=0,
            step=0,
            half=0,
            dtype=wire.DTYPES["float32"],
            sequence=0,
        ).pack()
        for cut in (0, 4, 8):  # blocks are cut into equal packets
            body = poison[: len(poison) - cut]
            other._link.send(wire.control(head, block=0, chunk=chunk, body=body), end._link.address)
    for got in made.all(summed):
        assert np.array_equal(got, np.full(20_000, 6.0, np.float32))


def test_markers_from_far_ahead_are_kept_for_a_bounded_number_of_halves(ranks: Make) -> None:
    made = ranks(2)
    end = made.groups[0].endpoint

    def flood() -> None:
        for sequence in range(100, 20_000):
            head = wire.Prefix(
                kind=wire.MARKER, token=end._token, source=1, destination=0, step=0, half=0, dtype=0, sequence=sequence
            ).pack()
            end._mail.take(np.frombuffer(wire.control(head, block=9, chunk=9), np.uint8).reshape(1, -1), 1)

    end.submit(flood).result(20)
    assert len(end._mail._early_markers) <= 1024


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.integers(0, 8),
    source=st.integers(0, 3),
    sequence=st.integers(0, 65535),
    half=st.integers(0, 2),
    dtype=st.integers(0, 4),
    block=st.integers(0, 2**32 - 1),
    chunk=st.integers(0, 2**32 - 1),
    size=st.integers(0, 400),
    rows=st.integers(1, 5),
)
def test_fuzzed_headers_with_the_right_token_do_no_harm(
    fuzzed: object,
    kind: int,
    source: int,
    sequence: int,
    half: int,
    dtype: int,
    block: int,
    chunk: int,
    size: int,
    rows: int,
) -> None:
    """Straight into the parser, far from the sequences in use."""
    group: Group = fuzzed.groups[0]  # type: ignore[attr-defined]
    header = Header(
        kind=kind,
        token=group.endpoint._token,
        source=source,
        destination=0,
        sequence=sequence or 20_000,
        half=half,
        dtype=dtype,
        block=block,
        chunk=chunk,
    )
    packet = np.frombuffer(header.pack() + bytes(size), np.uint8)
    far = (sequence + 30_000) % 65_536
    header_far = Header(kind=kind, token=group.endpoint._token, source=source, destination=0, sequence=far)
    other = np.frombuffer(header_far.pack().ljust(HEADER_BYTES + size, b"x"), np.uint8)
    group.endpoint.submit(lambda: group.endpoint._mail.take(np.stack([packet] * rows + [other]), 1)).result(5)
    group.endpoint.submit(lambda: group.endpoint._mail.take(packet[: size // 13].reshape(1, -1), 1)).result(5)


@pytest.fixture(scope="module")
def fuzzed() -> object:
    made = make_ranks(2)
    yield made
    made.close()


def test_a_deadline_follows_what_halves_of_that_size_took() -> None:
    deadlines = Deadlines(Policy(deadline_min_ms=10, deadline_max_ms=1000, deadline_factor=4))
    assert deadlines.now_s(5000) == 1.0, "until enough were seen"
    for _ in range(20):
        deadlines.took(5000, 0.05)
    assert deadlines.now_s(5000) == pytest.approx(0.2)
    assert deadlines.now_s(5_000_000) == 1.0, "another size has its own"
    deadlines.took(5000, 5.0)
    assert deadlines.now_s(5000) == pytest.approx(0.2), "one slow half changes nothing"
    for _ in range(100):
        deadlines.took(5000, 0.0001)
    assert deadlines.now_s(5000) == pytest.approx(0.01), "bounded below"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("deadlin_ms=3", "no setting 'deadlin_ms': known are deadline_min_ms"),
        ("dscp=many", "dscp=many: not a number"),
        ("normaliser=half", "normaliser is 'half': one of count, world, expected"),
        ("close_fraction=0", "close_fraction lies above 0"),
        ("deadline_min_ms=9999", "deadline_min_ms <= deadline_max_ms"),
    ],
)
def test_a_wrong_policy_says_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message.replace("(", r"\(")):
        Policy().with_settings(text)


def test_a_policy_from_the_environment() -> None:
    policy = Policy.from_environment({"LOSSBENCH_POLICY": "deadline_max_ms=500, missing=zero"})
    assert (policy.deadline_max_ms, policy.missing) == (500.0, "zero")


@pytest.mark.netns
def test_scapy_reads_what_the_transport_sends(pump: str) -> None:
    """A packet off the wire, field by field: the documented format is the real one."""
    del pump

    made = make_ranks(2)
    try:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003)) as tap:
            tap.bind(("lo", 0x0003))
            tap.settimeout(0.3)
            token, seen = made.groups[0].endpoint._token, []
            made.all(lambda group: summed(group, 2000))
            try:
                while True:
                    fields = dissect_frame(tap.recv(65536))
                    if fields is not None and fields["token"] == token:
                        seen.append(fields)
            except TimeoutError:
                pass
    finally:
        made.close()
    data = [f for f in seen if f["kind"] == 1]
    assert {(f["source"], f["destination"], f["half"], f["dtype"]) for f in data} >= {(0, 1, 0, 1), (1, 0, 1, 1)}
    assert all(f["block"] == (f["destination"] if f["half"] == 0 else f["source"]) for f in data)
    assert any(f["kind"] == 3 and f["dtype"] == 1 for f in seen), "an acknowledgement: finished"


def test_a_half_that_others_began_long_ago_is_not_over_on_arrival(ranks: Make) -> None:
    """Whoever is kept in the first half by a slow peer must not find the deadline of the second one already past."""
    made = ranks(3, policy=Policy(send_thread="off", deadline_min_ms=700, deadline_max_ms=700))

    def gathered(group: Group) -> str:
        """Rank 0 sends at once; rank 1 listens, but is busy until its deadline would have passed; rank 2 is last."""
        rank, layout = group.endpoint.rank, group.layout((1000,) * 3, F32)
        half = halves.start_all_gather(group.endpoint, np.zeros(3000, np.float32), layout=layout, block_of=(0, 1, 2))
        until = time.monotonic() + (0.0, 1.4, 1.6)[rank]
        group.endpoint.answer_until(lambda: time.monotonic() > until)
        mine = np.ones(1000, np.float32)
        return halves.finish_all_gather(group.endpoint, half, mine, layout=layout, block=rank).ended

    assert made.all(gathered)[1] == "all"


def test_a_library_that_others_could_have_written_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(native.load(), str):
        pytest.skip(f"no compiled pump: {native.load()}")
    monkeypatch.setenv("LOSSBENCH_CACHE", str(tmp_path))
    path = native._built()
    assert path.stat().st_mode & 0o077 == 0 and path.parent.stat().st_mode & 0o077 == 0
    path.chmod(0o777)
    with pytest.raises(native.NoNativeError, match="can be written by others"):
        native._built()


@pytest.mark.parametrize(
    "said",
    [
        b"{",
        b"[]",
        b'{"address": "a.b.c.d", "port": 1, "window": 9}',
        b'{"address": "10.0.0.1", "port": 0, "window": 9}',
        b'{"address": "10.0.0.1", "port": 99999, "window": 9}',
        b'{"address": "10.0.0.1", "port": 9, "window": -1}',
    ],
)
def test_a_rank_that_introduces_itself_wrongly_is_named(said: bytes) -> None:
    with pytest.raises(TransportError, match="rank 3"):
        meeting._member(3, said)
