"""A second thread that only sends, where there are cores for it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from lossbench.workloads.transport.half import Half


class Sender:
    """A second thread that only sends, where there are cores for it: the first one is free to take in and to add."""

    def __init__(self, send_round: Callable[[Half], bool]) -> None:
        self._send_round = send_round
        self._halves: queue.SimpleQueue[Half | None] = queue.SimpleQueue()
        self.idle = threading.Event()
        self.idle.set()
        self._thread = threading.Thread(target=self._main, name="lossy-send", daemon=True)
        self._thread.start()

    def start(self, half: Half) -> None:
        self.idle.clear()
        self._halves.put(half)

    def stop(self) -> None:
        self._halves.put(None)
        self._thread.join()

    def _main(self) -> None:
        while (half := self._halves.get()) is not None:
            try:
                while half.sending and not half.sends_done():
                    if not self._send_round(half):
                        time.sleep(0.0002)  # no room at the peer or in the queue
            except Exception as error:  # noqa: BLE001 - raised where the half is driven
                half.error = error
            finally:
                self.idle.set()
