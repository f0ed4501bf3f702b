"""Can all hosts of a network talk to all others, on the data link and on the control link?

    python tests/bench/all_to_all.py [--hosts 250]

One datagram for every pair and link; what did not arrive is named. As root."""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / ".package"), str(ROOT)]

from lossbench.net.tc import kinds  # noqa: E402
from tests.networks import building, every_way, said_on_both_links  # noqa: E402

SHOWN = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=250)
    asked = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    kinds.install()
    began = time.monotonic()
    with building() as build:
        network = build(topology={"hosts": asked.hosts}, impair=[])
        stood = time.monotonic()
        wanted, heard = every_way(network), said_on_both_links(network)
        talked = time.monotonic()
    missing = sorted(wanted - heard)
    print(
        f"{asked.hosts} hosts: {len(wanted) - len(missing)} of {len(wanted)} ways, both links; "
        f"up in {stood - began:.1f} s, talked for {talked - stood:.1f} s, down in {time.monotonic() - talked:.1f} s"
    )
    for link, one, other in missing[:SHOWN]:
        print(f"nothing came on the {link} link from {one} to {other}")
    sys.exit(bool(missing))


if __name__ == "__main__":
    main()
