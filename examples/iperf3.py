"""A lossy network as a block of Python, and iperf3 in it. As root, or with sudo."""

import json
import shutil
import sys

import lossbench

if shutil.which("iperf3") is None:
    sys.exit("iperf3 is not installed (apt-get install iperf3)")

for loss in ("0%", "3%"):
    with lossbench.Network(hosts=2, loss=loss, rate="100mbit") as net:
        server = net.host(0).popen(["iperf3", "-s", "-1"])
        done = net.host(1).run(["iperf3", "-c", net.host(0).address, "-t", "2", "--json"])
        sent = json.loads(done.stdout)["end"]["sum_sent"]
        dropped, seen = net.lost()
        print(
            f"{loss}: {sent['bits_per_second'] / 1e6:.1f} Mbit/s, {sent['retransmits']} segments sent again;", end=" "
        )
        print(f"the kernel dropped {dropped} of {seen} packets")
        server.wait(10)
