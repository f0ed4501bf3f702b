"""From a capture of a real network to a condition for lossbench: which packets of a UDP flow with
32-bit sequence numbers in its payload, as iperf3 sends it, are missing becomes a loss trace.

    python pcap_to_profile.py capture.pcap [--port 5201] [--offset 8] > mine.toml

`--offset`: where the 32-bit number stands in the UDP payload (iperf3: 8)."""

import argparse
import struct
import sys

PCAPNG = b"\x0a\x0d\x0d\x0a"
MOST_FOR_EACH = 1000  # numbers for each packet that came: more are no loss, but another field


def payloads(raw, port):
    """Of IPv4 UDP packets to this port, in the order of a pcap file."""
    order = "<" if raw[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
    at = 24
    while at + 16 <= len(raw):
        kept = struct.unpack(f"{order}I", raw[at + 8 : at + 12])[0]
        frame = raw[at + 16 : at + 16 + kept]
        at += 16 + kept
        if len(frame) < 42 or frame[12:14] != b"\x08\x00" or frame[23] != 17:
            continue
        start = 14 + 4 * (frame[14] & 15)
        if struct.unpack("!H", frame[start + 2 : start + 4])[0] == port:
            yield frame[start + 8 :]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("capture")
    parser.add_argument("--port", type=int, default=5201)
    parser.add_argument("--offset", type=int, default=8)
    asked = parser.parse_args()
    with open(asked.capture, "rb") as file:
        raw = file.read()
    if raw[:4] == PCAPNG:
        sys.exit(f"{asked.capture} is pcapng; as pcap it can be read: tcpdump -r {asked.capture} -w other.pcap")
    found = [data[asked.offset : asked.offset + 4] for data in payloads(raw, asked.port)]
    numbers = {struct.unpack("!I", four)[0] for four in found if len(four) == 4}
    if len(numbers) < 2:
        sys.exit(f"{asked.capture}: no numbered UDP packets to port {asked.port}")
    first, last = min(numbers), max(numbers)
    if last - first >= MOST_FOR_EACH * len(numbers):
        said = f"{len(numbers)} packets with numbers from {first} to {last}"
        sys.exit(f"{asked.capture}: {said}: do they stand at --offset {asked.offset}?")
    bits = "".join("0" if n in numbers else "1" for n in range(first, last + 1))
    print(f'why = "{len(bits)} packets of {asked.capture}, {bits.count("1")} of them lost"')
    print(f'\n[loss]\nmodel = "trace"\nloop = true\nbits = "{bits}"')


if __name__ == "__main__":
    main()
