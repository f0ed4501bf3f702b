"""The other end of a channel: answers one question a line until the channel ends, then gives back what it holds. A beat
is heard at once, whatever is being answered.

Started by bundle.BOOT. Standard output belongs to the protocol alone."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import ExitStack, suppress
from queue import SimpleQueue
from typing import IO, Any

from lossbench.errors import LossbenchError, NotAbleError
from lossbench.net.host import rootless
from lossbench.net.lab.half import Half
from lossbench.net.lab.held import Nic
from lossbench.net.lab.machine import Machine
from lossbench.net.lab.traffic import Traffic
from lossbench.results import machine
from lossbench.runs.lab.crew import Crew
from lossbench.runs.lab.probes import Probes

BEAT = b'{"n": 0,'
SILENT_S = 10.0  # beats come twice a second


class Facts:
    """What stands beside results of this machine."""

    def told(self) -> dict[str, Any]:
        return {**machine.facts(), "gpus": machine.gpus()}


class Agent:
    """What may be asked of it: `part.question`, every method of a part without an underscore."""

    def __init__(self) -> None:
        self.network, self.nic = Half(), Nic()
        self.heard_at = time.monotonic()
        self.parts: dict[str, Any] = {
            "machine": Machine(),
            "facts": Facts(),
            "wire": Traffic(),
            "nic": self.nic,
            "network": self.network,
            "probes": Probes(),
            "ranks": Crew(),
        }

    def question(self, what: str) -> Any:
        part, _, name = what.partition(".")
        method = None if name.startswith("_") else getattr(self.parts.get(part), name or "_", None)
        if not callable(method):
            raise NotAbleError(f"no such question: {what[:40]}", next_step="another version of lossbench?")
        return method

    def beat(self) -> None:
        self.network.beat()
        self.nic.beat()

    def give_back(self) -> None:
        """Each part lets go of what it holds, whatever the one before said."""
        with ExitStack() as stack:
            for part in self.parts.values():
                if hasattr(part, "close"):
                    stack.callback(part.close)


def answer(agent: Agent, line: bytes) -> dict[str, Any]:
    """To one question; a broken one is answered too."""
    number = None
    try:
        asked = json.loads(line)
        number = asked["n"]
        return {"n": number, "is": agent.question(str(asked["do"]))(**dict(asked["with"]))}
    except LossbenchError as error:
        not_able = isinstance(error, NotAbleError)
        return {"n": number, "error": {"message": error.message, "next_step": error.next_step, "not_able": not_able}}
    except Exception as error:  # noqa: BLE001 - whatever it is, the other side must hear of it
        return {"n": number, "error": {"message": f"{type(error).__name__}: {error}"}}


def serve(source: IO[bytes], target: IO[bytes]) -> None:
    agent = Agent()
    hello = {"boot": "agent", "root": not rootless.needed()}
    target.write(json.dumps(hello).encode() + b"\n")
    target.flush()
    asked: SimpleQueue[bytes | None] = SimpleQueue()
    threading.Thread(target=_hear, args=(source, agent, asked), daemon=True).start()
    threading.Thread(target=_silence, args=(agent, asked), daemon=True).start()
    try:
        while (line := asked.get()) is not None:
            said = answer(agent, line)
            if said["n"] is not None:
                target.write(json.dumps(said, default=str).encode() + b"\n")
                target.flush()
    except BrokenPipeError:
        pass
    finally:
        agent.give_back()


def _hear(source: IO[bytes], agent: Agent, asked: SimpleQueue[bytes | None]) -> None:
    """A beat wants no answer, and waits for none."""
    for line in source:
        agent.heard_at = time.monotonic()
        if line.startswith(BEAT):
            with suppress(OSError, AttributeError):  # what it held is just being given back
                agent.beat()
        else:
            asked.put(line)
    asked.put(None)


def _silence(agent: Agent, asked: SimpleQueue[bytes | None]) -> None:
    """A controller that is cut off closes nothing, and whoever is asked nothing waits only so long: a channel beats
    from the first answer to its end, whatever stands."""
    while time.monotonic() - agent.heard_at < SILENT_S:
        time.sleep(SILENT_S / 10)
    asked.put(None)


def main() -> None:
    """Whatever a library prints goes to standard error: there it is shown, here it would be nonsense."""
    target = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, target)


if __name__ == "__main__":
    main()
