"""What a process itself has sent: by its own connections, and by nobody else's."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from lossbench.workloads.transport import own

SEND = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as out: out.sendall(bytes(1_000_000))
"""


def test_what_a_process_sent_is_what_its_own_connections_carried() -> None:
    """As it was: whatever left over a link while a benchmark waited was said to be the benchmark's own."""
    before, names = own.sent_over("lo"), own.connected()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        subprocess.run([sys.executable, "-c", SEND, str(port)], check=True)
        theirs, _ = server.accept()
        with theirs, socket.create_connection(("127.0.0.1", port)) as out:
            there, _ = server.accept()
            with there:
                out.sendall(bytes(300_000))
                assert len(there.recv(300_000, socket.MSG_WAITALL)) == 300_000
                found = own.sent_over("lo") - before
                assert 300_000 < found < 400_000, "with headers, and without what the other process sent"
                assert own.sent_over("none") == 0
                mine = [fd for name, fd in own.connected().items() if name not in names]
                assert sorted(mine) == sorted(one.fileno() for one in (theirs, out, there))
                assert own.sent([out.fileno()]) > 300_000 > own.sent([there.fileno()])
                out.sendall(b"still open")


def test_what_goes_to_or_from_a_port_can_be_left_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [one.getsockname()[1] for one in (server, other)]
        before = own.sent_over("lo")
        with socket.create_connection(("127.0.0.1", ports[0])) as out, server.accept()[0] as there:
            out.sendall(bytes(100_000))
            assert len(there.recv(100_000, socket.MSG_WAITALL)) == 100_000
            assert own.sent_over("lo", besides=ports[1]) - before > 100_000
            assert own.sent_over("lo", besides=ports[0]) <= before


def test_a_kernel_that_does_not_count_bytes_sent_counts_what_was_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: before Linux 4.19 a benchmark had sent nothing itself, and its own agreeing went around the fault."""
    monkeypatch.setattr(own, "LONGEST", 192)  # as long as it was then
    server = socket.create_server(("127.0.0.1", 0))
    with server, socket.create_connection(server.getsockname()) as out, server.accept()[0] as there:
        out.sendall(bytes(300_000))
        assert len(there.recv(300_000, socket.MSG_WAITALL)) == 300_000
        there.sendall(b"x")  # carries what was not acknowledged yet
        assert out.recv(1) == b"x"
        assert 300_000 < own.sent([out.fileno()]) < 400_000 and own.sent([there.fileno()]) < 100_000
