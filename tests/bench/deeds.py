"""What the adversary can do to a run, by the condition that it makes false; how that condition is asked for; and the
programs that it is done to. adversary.py draws from here, tests/proof/test_table.py looks that no condition is
missing."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lossbench.net.bpf import syscalls
from lossbench.net.bpf.assembler import Assembler
from lossbench.net.bpf.classic import classifier
from lossbench.net.bpf.syscalls import ArrayMap
from lossbench.net.host import namespaces
from lossbench.net.impair import cbpf
from lossbench.net.impair.ebpf import memory
from lossbench.net.impair.ebpf.backend import EbpfBackend
from lossbench.net.impair.netem import backend as netem
from lossbench.net.impair.netem.options import options_of
from lossbench.net.star.links import Star
from lossbench.net.star.neighbours import NUD_PERMANENT
from lossbench.net.tc import kinds, offloads
from lossbench.net.tc.hook import PARENT as SIDES
from lossbench.net.tc.hook import aside, put_filter
from lossbench.spec.experiment import Experiment
from lossbench.spec.placement import rules_ever, rules_in_force
from lossbench.spec.userfile import check
from tests.attached import attached
from tests.forked import Command
from tests.shared import namespaces_of

PARENT = {"uplink": SIDES["ingress"], "downlink": SIDES["egress"]}
PASS_ALL = struct.pack("<HBBI", 0x06, 0, 0, 0)  # classic BPF: return TC_ACT_OK, whatever comes after
DROP_ALL = struct.pack("<HBBI", 0x06, 0, 0, 2)  # TC_ACT_SHOT
QUEUED = "i0u0"  # netem's device of the first entry at h0's uplink
DEPARTING = "e0u"  # edt's there
LIE = "lie"  # a file in a run's folder: from now on its wire lies
SECONDS = 2.0  # that a workload talks
TALKING = 50  # packets from h0
STEP_S = 0.04
LIMIT_S = 60  # who talks over a wire that was killed would wait for ever
ALONE_LIMIT_S = 600  # of a run that nothing is done to: TCP through bursts on a busy machine is slow, and no hang

# --- what is asked, by condition -------------------------------------------------------------------------------------

LOSS = {"model": "iid", "percent": 5}
SLOW = {"mean_ms": 10}
WINDOW, STEPS = (0.8, 1.8), (15, 30)
ASKS: dict[str, dict[str, Any]] = {
    "loss": {"profile": {"loss": LOSS}},
    "bursts": {"profile": {"loss": {"model": "gilbert_elliott", "mean_percent": 5, "burst_packets_mean": 8}}},
    "delay": {"profile": {"loss": LOSS, "delay": SLOW}},
    "jitter": {"profile": {"loss": LOSS, "delay": {**SLOW, "jitter_ms": 4}}},
    "reordering": {"profile": {"delay": SLOW, "reorder": {"percent": 25}}},
    "duplicates": {"profile": {"duplicate_percent": 3}},
    "damage": {"profile": {"corrupt_percent": 3}},
    "rate and queue": {"profile": {"loss": LOSS}, "topology": {"rate_mbit": 50}},
    "windows in time": {"profile": {"loss": {**LOSS, "percent": 20}}, "from_s": WINDOW[0], "to_s": WINDOW[1]},
    "windows in steps": {"profile": {"loss": {**LOSS, "percent": 20}}, "from_step": STEPS[0], "to_step": STEPS[1]},
    "matches": {"profile": {"loss": LOSS, "match": {"protocol": "udp"}}},
    "directions": {"profile": {"loss": LOSS}, "direction": "both"},
    "pairs": {"profile": {"loss": {**LOSS, "percent": 20}}, "pairs": [["h0", "h1"]]},
    "MTU": {"profile": {"loss": LOSS}},
    "presence": {"profile": {"loss": LOSS}},
}

# --- who talks -------------------------------------------------------------------------------------------------------

COPY = """
import contextlib, os, socket, threading, time
rank, peers = int(os.environ["RANK"]), os.environ["LOSSBENCH_ADDRESSES"].split(",")
door = socket.create_server((peers[rank], 7000))
def take():
    with door.accept()[0] as one:
        while one.recv(1 << 16): pass
reader = threading.Thread(target=take); reader.start()
while True:
    with contextlib.suppress(ConnectionRefusedError):
        to = socket.create_connection((peers[(rank + 1) % len(peers)], 7000)); break
    time.sleep(0.02)
end = time.monotonic() + SECONDS
while time.monotonic() < end: to.sendall(bytes(32768)); time.sleep(0.01)
to.close(); reader.join()
"""
RAILS = """
import contextlib, os, socket, threading, time
rank, peers = int(os.environ["RANK"]), os.environ["LOSSBENCH_ADDRESSES"].split(",")
rails = [peers, [f"10.78.0.{number + 1}" for number in range(len(peers))]]
doors = [socket.create_server((rail[rank], 7000)) for rail in rails]
def take(door):
    with door.accept()[0] as one:
        while one.recv(1 << 16): pass
def give(rail):
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            to = socket.create_connection((rail[(rank + 1) % len(peers)], 7000)); break
        time.sleep(0.02)
    with to:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end: to.sendall(bytes(32768)); time.sleep(0.01)
every = [threading.Thread(target=take, args=(door,)) for door in doors]
every += [threading.Thread(target=give, args=(rail,)) for rail in rails]
for one in every: one.start()
for one in every: one.join()
"""
MULTIPATH = """
import os, socket, threading, time
from pyroute2 import MPTCP
rank, peers = int(os.environ["RANK"]), os.environ["LOSSBENCH_ADDRESSES"].split(",")
with MPTCP() as paths:  # what a daemon for MPTCP does
    paths.limits("set", subflows=4, rcv_add_addrs=4)
    paths.endpoint("add", addr=f"10.78.0.{rank + 1}", flags=1)  # told to the other side
def stream(): return socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
door = stream(); door.bind(("", 7000)); door.listen()
def take():
    with door.accept()[0] as one:
        while one.recv(1 << 16): pass
reader = threading.Thread(target=take); reader.start()
while True:
    to = stream()
    try: to.connect((peers[(rank + 1) % len(peers)], 7000)); break
    except ConnectionRefusedError: to.close(); time.sleep(0.02)
end = time.monotonic() + SECONDS
while time.monotonic() < end: to.sendall(bytes(65536)); time.sleep(0.005)
to.close(); reader.join()
"""
DOWNLOAD = """
import contextlib, http.server, os, socketserver, threading, time, urllib.request
rank, peers = int(os.environ["RANK"]), os.environ["LOSSBENCH_ADDRESSES"].split(",")
done = set()
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path.startswith("/done"): done.add(self.path)
        body = bytes(64) if self.path.startswith("/done") else bytes(32768)
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
def get(path): return urllib.request.urlopen(f"http://{peers[0]}:8080/{path}", timeout=30).read()
if rank == 0:
    server = http.server.ThreadingHTTPServer((peers[0], 8080), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while len(done) < len(peers) - 1: time.sleep(0.02)
    time.sleep(0.2)
else:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(OSError): get("page")
        time.sleep(0.01)
    while True:
        with contextlib.suppress(OSError): get(f"done{rank}"); break
        time.sleep(0.05)
"""
MULTICAST = """
import os, socket, time
own = os.environ["LOSSBENCH_ADDRESSES"].split(",")[int(os.environ["RANK"])]
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("", 5353))
s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(own))
s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton("224.0.0.251") + socket.inet_aton(own))
s.setblocking(False)
while True:
    s.sendto(b"who has a printer", ("224.0.0.251", 5353)); s.sendto(b"you?", ("10.77.0.99", 5353))
    try:
        while True: s.recv(100)
    except BlockingIOError: time.sleep(0.05)
"""
SILENT = {"copy": COPY, "download": DOWNLOAD}  # report nothing of their traffic
WORKLOADS = ("chatter", *SILENT)
PROGRAMS = {**SILENT, "rails": RAILS, "multipath": MULTIPATH}  # the others use the control link beside the data link


def workload(name: str, folder: Path, *, limit_s: int) -> dict[str, Any]:
    if name == "chatter":
        steps = round(SECONDS / STEP_S)
        options = {"steps": steps, "blocks": 2, "spacing_ms": round(1000 * STEP_S)}
        return {"name": name, "options": options, "time_limit_s": limit_s}
    program = folder / f"{name}.py"
    program.write_text(f"SECONDS = {SECONDS}\n{PROGRAMS[name]}")
    return {"command": [sys.executable, str(program)], "barrier": False, "time_limit_s": limit_s}


def experiment(
    backend: str,
    of: str,
    talks: str,
    *,
    seed: int,
    folder: Path,
    beside: bool = False,
    limit_s: int = LIMIT_S,
    match: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """One that asks for a condition. Packets wait a little on the backends that are there for it. `match`: instead of
    the condition's."""
    entry = {key: value for key, value in ASKS[of].items() if key != "topology"}
    profile = {"name": "asked", "why": "t", **entry["profile"]}
    if of == "matches":
        profile["match"] = match or {"protocol": "udp" if talks == "chatter" else "tcp"}
    if backend in ("relay", "edt") and of != "duplicates":
        profile.setdefault("delay", SLOW)
    rated = {"rate_mbit": 50} if backend == "relay" else {}
    out = {
        "name": "adversary",
        "backend": backend,
        "first_seed": seed,
        "topology": {"hosts": 3, **rated, **ASKS[of].get("topology", {})},
        "probe": {"packets": 3000},
        "impair": [{**entry, "profile": profile}],
        "workload": workload(talks, folder, limit_s=limit_s),
    }
    if beside:
        program = folder / "multicast.py"
        program.write_text(MULTICAST)
        out["beside"] = [{"role": "printer", "command": [sys.executable, str(program)], "barrier": False}]
    return out


# --- what is done ----------------------------------------------------------------------------------------------------


@dataclass
class Running:
    """A lossbench that runs, what it was asked for, and the places of its network."""

    process: Command
    random: random.Random
    asked: Experiment
    seed: int = 0
    folder: Path = Path()
    helpers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def place(self, end: str) -> str:
        return next(name for name in namespaces_of(self.process.pid) if name.endswith(f"-{end}"))

    def wait_until_it_talks(self) -> None:
        """What is done before a busy machine has brought the workload to life makes nothing false."""
        with namespaces.open_inside(self.place("sw")) as switch:
            port, first = switch.link_lookup(ifname="p0")[0], -1
            while self.process.poll() is None:
                now = switch.get_links(port)[0].get_attr("IFLA_STATS64")["rx_packets"]
                first = now if first < 0 else first
                if now > first + TALKING:
                    return
                time.sleep(0.02)

    def wait_until_step(self, step: int) -> None:
        """That one of its ranks has reported, in a file that it writes itself."""
        words, until = re.compile(rb'"step": ?(\d+)'), time.monotonic() + LIMIT_S
        while self.process.poll() is None and time.monotonic() < until:
            for one in self.folder.rglob("records/rank-*.jsonl"):
                if any(int(found) >= step for found in words.findall(one.read_bytes())):
                    return
            time.sleep(0.02)

    def pause(self, low: float, high: float) -> None:
        time.sleep(self.random.uniform(low, high))

    @contextmanager
    def star(self) -> Iterator[Star]:
        star = Star(network_id=self.place("sw").split("-")[1], topology=self.asked.topology)
        try:
            star.open()
            yield star
        finally:
            star.close()

    def maps(self, value_bytes: int) -> list[ArrayMap]:
        """Of one entry of this size, that the run holds: other runs have others."""
        found = set()
        for one in Path(f"/proc/{self.process.pid}/fdinfo").iterdir():
            try:
                text = one.read_text()
            except OSError:
                continue  # closed meanwhile
            said = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
            if "map_id" in said and (int(said["value_size"]), int(said["max_entries"])) == (value_bytes, 1):
                found.add(int(said["map_id"]))
        return [ArrayMap.open(map_id=one, value_bytes=value_bytes) for one in sorted(found)]


def really(run: Running, profile: dict[str, Any], **entry: Any) -> Experiment:
    """The same experiment, but for this."""
    stored = run.asked.model_dump(mode="json")
    first = stored["impair"][0]
    first |= {"profile": first["profile"] | profile, **entry}
    return check(Experiment, stored, origin="adversary")


def plant(run: Running, profile: dict[str, Any], **entry: Any) -> None:
    """Another program in the place of ours at h0's uplink, made as ours are."""
    rules = rules_in_force(really(run, profile, **entry), seed=run.seed)
    with run.star() as star:
        hook, here = next(iter(rules.items()))
        point = star.hook_point(hook)
        if run.asked.backend == "cbpf":
            put_filter(star.switch, point, prio=2, ops=cbpf.program(here), direct_action=True)
            return
        if run.asked.backend == "netem":  # the same queue, for other packets
            away = aside(star.switch.link_lookup(ifname=QUEUED)[0])
            put_filter(star.switch, point, prio=netem.FIRST_PRIO, ops=classifier(here[0].match), action=away)
            return
        backend = EbpfBackend(star.switch, place=star.place("sw"))
        try:
            backend.put(point, here)
        finally:
            backend.close()


def rewrite(run: Running, profile: dict[str, Any]) -> None:
    """The numbers that its programs go by, in memory that they share with the harness: no message tells of it. On netem
    those of a qdisc, which stays where it is."""
    ((rule,), *_) = rules_ever(really(run, profile), seed=run.seed).values()
    if run.asked.backend == "netem":
        with namespaces.open_inside(run.place("sw")) as switch:
            (device,) = switch.link_lookup(ifname=QUEUED)
            switch.tc("replace", "netem", device, 0x10000, parent=kinds.TC_H_ROOT, netem=options_of(rule))
        return
    wrong = memory.asked_part(memory.rule_memory(rule))
    for one in run.maps(2 * memory.RULE_BYTES):  # of what no rule takes, and of the rule
        one.write(one.read()[: -len(wrong)] + wrong)
        one.close()


def pass_all(run: Running, direction: str) -> None:
    with namespaces.open_inside(run.place("sw")) as switch:
        port = switch.link_lookup(ifname="p0")[0]
        there = {"parent": PARENT[direction], "prio": 1, "handle": 7}
        switch.tc("add-filter", "bpf", port, ops=PASS_ALL, direct_action=True, **there)
        run.pause(0.05, 0.4)
        switch.tc("del-filter", "bpf", port, **there)


def filter_ahead(run: Running) -> None:
    pass_all(run, "uplink")


def filter_ahead_of_a_downlink(run: Running) -> None:
    pass_all(run, "downlink")


def tcx_ahead(run: Running) -> None:
    """Runs before clsact; gone with its descriptor, and no netlink message tells of it."""
    with namespaces.open_inside(run.place("sw")) as switch:
        port = switch.link_lookup(ifname="p0")[0]
    code = Assembler()
    code.exit(0)
    program = syscalls.load_classifier(code.assemble(), name="ahead")
    with namespaces.inside(run.place("sw")):
        link = syscalls._bpf(28, struct.pack("<IIII32x", program, port, 46, 0))  # BPF_LINK_CREATE, tcx ingress
    run.pause(0.05, 0.4)
    os.close(link)
    os.close(program)


def remove_clsact(run: Running) -> None:
    with namespaces.open_inside(run.place("sw")) as switch:
        switch.tc("del", "clsact", switch.link_lookup(ifname="p1")[0])


def fault_away_for_a_moment(run: Running) -> None:
    """The filter is taken out; what comes back is not ours."""
    with namespaces.open_inside(run.place("sw")) as switch:
        port = switch.link_lookup(ifname="p1")[0]
        prio = max(f["info"] >> 16 for f in switch.get_filters(index=port, parent=PARENT["uplink"]))
        switch.tc("del-filter", "bpf", port, parent=PARENT["uplink"], prio=prio, handle=1)
        run.pause(0.05, 0.2)
        switch.tc(
            "add-filter", "bpf", port, parent=PARENT["uplink"], prio=prio, handle=1, ops=PASS_ALL, direct_action=True
        )


def less_loss(run: Running) -> None:
    rewrite(run, {"loss": {**LOSS, "percent": 1}})


def shorter_bursts(run: Running) -> None:
    rewrite(run, {"loss": LOSS})


def less_loss_for_a_moment(run: Running) -> None:
    """And as it was asked, before anybody looks."""
    less_loss(run)
    run.pause(0.05, 0.1)
    rewrite(run, {})


def another_delay(run: Running) -> None:
    rewrite(run, {"delay": {"mean_ms": 4}})


def no_jitter(run: Running) -> None:
    rewrite(run, {"delay": SLOW})


def no_overtaking(run: Running) -> None:
    rewrite(run, {"reorder": {"percent": 0}})


def wire_without_luck(run: Running) -> None:
    """From now on what it draws is .5: nothing is spread, and nothing overtakes."""
    (run.folder / LIE).touch()


def another_queue(run: Running) -> None:
    """One that knows no departure times, in the place of edt's."""
    with namespaces.open_inside(run.place("sw")) as switch:
        (device,) = switch.link_lookup(ifname=DEPARTING)
        switch.tc("replace", "pfifo", device, 0x20000, parent=kinds.TC_H_ROOT, limit=1000)


def no_duplicates(run: Running) -> None:
    rewrite(run, {"duplicate_percent": 0})


def no_damage(run: Running) -> None:
    rewrite(run, {"corrupt_percent": 0})


def another_match(run: Running) -> None:
    plant(run, {"match": {"protocol": "udp", "destination_ports": [9]}})


def another_pair(run: Running) -> None:
    plant(run, {}, pairs=[["h0", "h2"]])


def shift_window(run: Running) -> None:
    """By a quarter of a second: what its program compares the clock with."""
    here = next(iter(rules_ever(run.asked, seed=run.seed, kept=True).values()))
    for one in run.maps(memory.WINDOW_BYTES * (len(here) + 1)):
        limits = struct.unpack(f"<{2 * (len(here) + 1)}Q", one.read())
        later = [at + 250_000_000 if 0 < at < memory.NEVER else at for at in limits]
        one.write(struct.pack(f"<{len(later)}Q", *later))
        one.close()


def stop_the_harness(run: Running) -> None:
    """Until a window should have opened and has not."""
    run.process.send_signal(signal.SIGSTOP)
    time.sleep(1.0)
    run.process.send_signal(signal.SIGCONT)


def sleep_through_a_step(run: Running) -> None:
    """Until the ranks are well behind the one at which a rule should have come."""
    run.process.send_signal(signal.SIGSTOP)
    run.wait_until_step(STEPS[0] + 4)
    run.process.send_signal(signal.SIGCONT)


def remove_rate(run: Running) -> None:
    with namespaces.open_inside(run.place("h0")) as host:
        host.tc("del", index=host.link_lookup(ifname="eth0")[0], parent=0xFFFFFFFF)


def change_rate(run: Running) -> None:
    """And back again before anybody looks."""
    with namespaces.open_inside(run.place("sw")) as switch:
        port = switch.link_lookup(ifname="p1")[0]
        (link,) = [c for c in switch.get_classes(port) if c["handle"] == 0x10001]
        rate = link.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_PARMS")["ceil"]
        for now in (10 * rate, rate):
            more = {"burst": 20_000, "cburst": 20_000, "prio": 0, "quantum": 1514, "mtu": 1600}
            switch.tc("change-class", "htb", port, handle=0x10001, parent=0x10000, rate=now, ceil=now, **more)
            time.sleep(0.02)


def wire_of(run: Running) -> list[int]:
    out = []
    for entry in Path("/proc").iterdir():
        try:
            words, status = (entry / "cmdline").read_bytes(), (entry / "status").read_text()
        except (OSError, ValueError):
            continue
        if b"relay.process" in words and f"PPid:\t{run.process.pid}\n" in status:
            out.append(int(entry.name))
    return out


def kill_the_wire(run: Running) -> None:
    for pid in wire_of(run):
        os.kill(pid, signal.SIGKILL)


def stop_the_wire(run: Running) -> None:
    for pid in wire_of(run):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1.0)  # TCP may be silent for a part of it, waiting for what was lost
        os.kill(pid, signal.SIGCONT)


def flood_a_port(run: Running) -> None:
    with namespaces.inside(run.place("h0")):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sender:
        for _ in range(3000):
            sender.sendto(bytes(200), ("10.77.0.2", 9))


def around_the_fault(run: Running) -> None:
    """Three megabytes over the control link."""
    with namespaces.inside(run.place("h0")):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    send_around(sender)


def raw_around_the_fault(run: Running) -> None:
    """By a protocol that no port tells of."""
    with namespaces.inside(run.place("h0")):
        sender = socket.socket(socket.AF_INET, socket.SOCK_RAW, 253)
    send_around(sender)


def send_around(sender: socket.socket) -> None:
    with sender:
        for number in range(2200):
            sender.sendto(bytes(1400), ("10.78.0.2", 9))
            if number % 50 == 0:
                time.sleep(0.002)


def past_the_rate(run: Running) -> None:
    """Whole frames that no queue of the host sees (PACKET_QDISC_BYPASS): 14 MB where 50 Mbit/s are asked."""
    h0, h1 = (run.asked.topology.host(name) for name in ("h0", "h1"))
    udp = struct.pack("!HHHH", 4000, 9, 8 + 1200, 0) + bytes(1200)
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0x4000, 64, 17, 0)
    head += socket.inet_aton(h0.ipv4) + socket.inet_aton(h1.ipv4)
    total = sum(struct.unpack("!10H", head))
    total = (total & 0xFFFF) + (total >> 16)
    macs = b"".join(bytes.fromhex(host.mac.replace(":", "")) for host in (h1, h0))
    frame = macs + b"\x08\x00" + head[:10] + struct.pack("!H", 0xFFFF ^ total) + head[12:] + udp
    with namespaces.inside(run.place("h0")):
        sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        sender.bind(("eth0", 0))
    with sender:
        sender.setsockopt(263, 20, 1)  # SOL_PACKET, PACKET_QDISC_BYPASS
        sender.setsockopt(socket.SOL_SOCKET, 32, 1 << 26)  # SO_SNDBUFFORCE, or a downlink's queue holds it back
        for _ in range(11_000):
            with suppress(OSError):  # no room at the moment
                sender.send(frame)


def large_datagrams(run: Running) -> None:
    """To a port that is asked for, and cut: of the pieces only the first shows it."""
    with namespaces.inside(run.place("h0")):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sender:
        for _ in range(40):
            sender.sendto(bytes(8000), ("10.77.0.2", 7000))
            time.sleep(0.001)


def link_of_its_own(run: Running) -> None:
    """From host to host past the switch, and a route that leads what is for the other's data address over it."""
    with namespaces.open_inside(run.place("h0")) as h0, namespaces.open_inside(run.place("h1")) as h1:
        with open(f"/run/netns/{run.place('h1')}") as there:
            h0.link("add", ifname="x0", kind="veth", peer={"ifname": "x1", "net_ns_fd": there.fileno()})
        for end, name, other in ((h0, "x0", "10.77.0.2"), (h1, "x1", "10.77.0.1")):
            index = end.link_lookup(ifname=name)[0]
            end.link("set", index=index, state="up")
            end.route("add", dst=f"{other}/32", oif=index)


def host_mtu(run: Running) -> None:
    """Of a host's own link, and back."""
    with namespaces.open_inside(run.place("h1")) as host:
        link = host.link_lookup(ifname="eth0")[0]
        for mtu in (900, 1500):
            host.link("set", index=link, mtu=mtu)


def longer_queue(run: Running) -> None:
    """Of a link with a rate, and back before anybody looks."""
    with namespaces.open_inside(run.place("sw")) as switch:
        port = switch.link_lookup(ifname="p1")[0]
        (leaf,) = [q for q in switch.get_qdiscs(port) if q.get_attr("TCA_KIND") in ("bfifo", "pfifo")]
        limit = leaf.get_attr("TCA_OPTIONS")["limit"]
        for now in (20 * limit, limit):
            kind, there = leaf.get_attr("TCA_KIND"), {"parent": leaf["parent"], "handle": leaf["handle"]}
            switch.tc("replace", kind, port, limit=now, **there)


def host_drops(run: Running) -> None:
    """A filter in a host, behind every counter of the switch."""
    with namespaces.open_inside(run.place("h1")) as host:
        link = host.link_lookup(ifname="eth0")[0]
        host.tc("add", "clsact", link)
        there = {"parent": SIDES["ingress"], "prio": 1, "handle": 7}
        host.tc("add-filter", "bpf", link, ops=DROP_ALL, direct_action=True, **there)
        run.pause(0.05, 0.2)
        host.tc("del", "clsact", link)


def host_program(run: Running) -> None:
    """In a host, by a descriptor that is closed again: no message tells of it."""
    with attached("tcx", run.place("h1")):
        run.pause(0.6, 0.9)


def host_address(run: Running) -> None:
    """Of a host's hardware, and back."""
    with namespaces.open_inside(run.place("h1")) as host:
        link = host.link_lookup(ifname="eth0")[0]
        for address in ("02:6c:62:00:00:77", run.asked.topology.host("h1").mac):
            host.link("set", index=link, address=address)
            run.pause(0.1, 0.3)


def another_neighbour(run: Running) -> None:
    """What is for one host goes to another, and to the right one again."""
    with namespaces.open_inside(run.place("h0")) as host:
        link, h1, h2 = host.link_lookup(ifname="eth0")[0], *(run.asked.topology.host(name) for name in ("h1", "h2"))
        for mac in (h2.mac, h1.mac):
            host.neigh("replace", dst=h1.ipv4, lladdr=mac, ifindex=link, state=NUD_PERMANENT)
            run.pause(0.1, 0.3)


def another_mtu(run: Running) -> None:
    with namespaces.open_inside(run.place("sw")) as switch:
        port = switch.link_lookup(ifname="p0")[0]
        switch.link("set", index=port, mtu=1400)
        switch.link("set", index=port, mtu=1500)


def offloads_on(run: Running) -> None:
    with namespaces.inside(run.place("h1")):
        offloads.switch("eth0", {"tx-udp-segmentation": True, "tx-generic-segmentation": True})


def steal_cpu(run: Running) -> None:
    """Until the run ends."""
    for _ in range(2 * len(os.sched_getaffinity(0))):
        run.helpers.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))


def nothing(run: Running) -> None:
    del run


@dataclass(frozen=True)
class Deed:
    """`of`: the condition that is asked for, and made false; `voids`: the column that must not be valid afterwards;
    empty if nothing may be voided. `says`: words of which a reason must hold one, or it was doubted for something
    else."""

    act: Callable[[Running], None]
    of: str
    says: tuple[str, ...] = ()
    voids: str = "fault"
    backends: tuple[str, ...] = ("ebpf", "cbpf", "relay", "netem", "edt")
    workloads: tuple[str, ...] = WORKLOADS
    called: str = ""
    match: dict[str, Any] | None = field(default=None, hash=False)  # that is asked for
    late_wire: bool = False  # the process starts late
    lies: bool = False  # it draws what it likes, once it is told
    beside: bool = False  # programs that look for others by multicast
    within_s: float = 0.6 * SECONDS  # of the run's beginning

    @property
    def name(self) -> str:
        return self.called or self.act.__name__

    @property
    def limit_s(self) -> int:
        """A run that must be valid is not ended by the adversary's own impatience."""
        return LIMIT_S if self.voids else ALONE_LIMIT_S


HEARD = ("not by lossbench", "not ours", "in the kernel", "past the rules", "not attached", "lost during the run")
REWRITTEN = (*HEARD, "seeded pattern", "its generator", "duplicated", "damaged")
LATE = (" s late (", "steps late (", " late (", "never in force", "were let go")
OURS = ("ebpf", "cbpf", "relay")  # that run wherever bpf(2) does
MAPPED = ("ebpf", "relay", "edt")  # whose programs share memory with the harness
REWRITABLE = (*MAPPED, "netem")  # or which have the numbers in a qdisc
PLANTED = (*OURS, "netem")
CHATTER = ("chatter",)
SOON = 0.3
DEEDS = {
    deed.name: deed
    for deed in (
        Deed(filter_ahead, "loss", HEARD),
        Deed(tcx_ahead, "loss", ("ahead of the fault", "past the rules"), backends=OURS),
        Deed(remove_clsact, "loss", HEARD),
        Deed(fault_away_for_a_moment, "loss", HEARD),
        Deed(less_loss, "loss", REWRITTEN, backends=REWRITABLE),
        Deed(shorter_bursts, "bursts", REWRITTEN, backends=REWRITABLE),
        Deed(no_duplicates, "duplicates", REWRITTEN, backends=REWRITABLE),
        Deed(no_damage, "damage", REWRITTEN, backends=REWRITABLE),
        Deed(less_loss_for_a_moment, "loss", HEARD, backends=("netem",)),
        Deed(another_delay, "delay", HEARD, backends=("netem",)),
        Deed(another_queue, "delay", HEARD, backends=("edt",)),
        Deed(no_jitter, "jitter", HEARD, backends=("netem",)),
        Deed(no_overtaking, "reordering", HEARD, backends=("netem",)),
        Deed(wire_without_luck, "jitter", ("with a deviation of",), backends=("relay",), lies=True, within_s=SOON),
        Deed(
            wire_without_luck,
            "reordering",
            ("packets overtook",),
            backends=("relay",),
            lies=True,
            within_s=SOON,
            called="wire_that_nothing_overtakes",
        ),
        Deed(remove_rate, "rate and queue", ("not by lossbench", "uplink:")),
        Deed(change_rate, "rate and queue", ("not by lossbench", "downlink:")),
        Deed(shift_window, "windows in time", REWRITTEN, backends=("ebpf", "edt"), within_s=SOON),
        Deed(
            stop_the_harness,
            "windows in time",
            LATE,
            backends=("cbpf", "relay", "netem"),
            within_s=SOON,
            called="late_for_a_second",
        ),
        Deed(
            sleep_through_a_step, "windows in steps", LATE, workloads=CHATTER, within_s=SOON, called="late_for_a_step"
        ),
        Deed(another_match, "matches", HEARD, backends=PLANTED),
        Deed(large_datagrams, "matches", ("IP fragments",), workloads=("copy",), match={"destination_ports": [7000]}),
        Deed(filter_ahead_of_a_downlink, "directions", HEARD),
        Deed(another_pair, "pairs", HEARD, backends=PLANTED),
        Deed(another_mtu, "MTU", ("p0: MTU", "p0 MTU")),
        Deed(offloads_on, "MTU", ("offloads were switched", "super-packets")),
        Deed(around_the_fault, "presence", ("over the control links",)),
        Deed(raw_around_the_fault, "presence", ("over the control links",)),
        Deed(nothing, "presence", ("over the control links",), workloads=("rails",), called="two_rails"),
        Deed(nothing, "presence", ("over the control links",), workloads=("multipath",), called="second_path"),
        Deed(past_the_rate, "rate and queue", ("h0 uplink:",), within_s=SOON),
        Deed(host_drops, "presence", ("h1 eth0:",)),
        Deed(host_program, "presence", ("h1: a tcx program",), backends=OURS),
        Deed(host_address, "presence", ("h1 eth0: the hardware address",)),
        Deed(another_neighbour, "presence", ("h0 eth0: neighbour",)),
        Deed(link_of_its_own, "presence", ("around the data link",)),
        Deed(host_mtu, "MTU", ("h1 eth0: MTU",)),
        Deed(longer_queue, "rate and queue", ("not by lossbench", "downlink:")),
        Deed(flood_a_port, "presence", ("says that it sent", "the workload misses"), workloads=CHATTER),
        Deed(kill_the_wire, "delay", ("the wire", *HEARD, "not accounted for"), backends=("relay",)),
        Deed(stop_the_wire, "delay", ("ms late or more (", "the wire"), backends=("relay",)),
        Deed(steal_cpu, "loss", ("CPU saturated", "waited for a core"), voids="timing", workloads=CHATTER),
        Deed(nothing, "delay", voids="", backends=("relay",), late_wire=True, called="late_wire"),
    )
    if "multipath" not in deed.workloads or Path("/proc/sys/net/mptcp").exists()
}


def honest(of: str) -> list[Deed]:
    """What is done beside a run that is to stay valid."""
    talks = CHATTER if of == "windows in steps" else WORKLOADS
    plain = Deed(nothing, of, voids="", workloads=talks)
    # A harness that has to be on time is late on a machine that is too busy, and says so: that is no alarm to try for.
    busy = [] if of.startswith("windows") else [replace(plain, act=steal_cpu, called="busy")]
    return [plain, replace(plain, beside=True, called="multicast"), *busy]
