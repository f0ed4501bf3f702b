"""What a process itself has sent: by its own connections, and by nobody else's."""

from __future__ import annotations

import socket
import subprocess
import sys

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
