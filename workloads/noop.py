"""The smallest workload: comes up, waits for the others, ends. It shows that the network and the launcher work.

lossbench run proof
"""

from __future__ import annotations

import time

from lossbench.contract import Door


def main() -> None:
    door = Door.from_environment()
    door.ready()
    time.sleep(float(door.options.get("seconds", 0.5)))
    door.record("summary", ranks=door.world_size)


if __name__ == "__main__":
    main()
