"""Keyed tags: SipHash-2-4, of single packets in Python, of many rows at once in numpy. native/wire.c does the same."""

from __future__ import annotations

import struct

import numpy as np

from lossbench.contract import HEADER_BYTES, HEADER_FIELDS
from lossbench.workloads.transport.packet.wire import DATA, PREFIX_BYTES, RELIABLE, Array, Bytes

MASK = 0xFFFFFFFFFFFFFFFF
TAG_AT, TAG_END = HEADER_FIELDS["tag"][0], HEADER_FIELDS["tag"][0] + 8
_START = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def siphash(key: tuple[int, int], data: bytes) -> int:
    v0, v1, v2, v3 = _START[0] ^ key[0], _START[1] ^ key[1], _START[2] ^ key[0], _START[3] ^ key[1]
    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 255])
    words = struct.unpack(f"<{len(padded) // 8}Q", padded)
    for number, word in enumerate((*words, 0xFF)):
        last = number == len(words)
        if last:
            v2 ^= word
        else:
            v3 ^= word
        for _ in range(4 if last else 2):
            v0 = (v0 + v1) & MASK
            v2 = (v2 + v3) & MASK
            v1 = ((v1 << 13) & MASK | v1 >> 51) ^ v0
            v3 = ((v3 << 16) & MASK | v3 >> 48) ^ v2
            v0 = (v0 << 32) & MASK | v0 >> 32
            v2 = (v2 + v1) & MASK
            v0 = (v0 + v3) & MASK
            v1 = ((v1 << 17) & MASK | v1 >> 47) ^ v2
            v3 = ((v3 << 21) & MASK | v3 >> 43) ^ v0
            v2 = (v2 << 32) & MASK | v2 >> 32
        if not last:
            v0 ^= word
    return v0 ^ v1 ^ v2 ^ v3


def siphash_rows(keys: tuple[Array, int], rows: Bytes) -> Array:
    """Of many rows of one length; the first half of the key is a row's own."""
    count, length = rows.shape
    padded = np.zeros((count, length // 8 * 8 + 8), np.uint8)
    padded[:, :length] = rows
    padded[:, -1] = length & 255
    words = padded.view(np.uint64)
    first, second = keys[0], np.uint64(keys[1])
    v0, v1 = first ^ np.uint64(_START[0]), np.full(count, second ^ np.uint64(_START[1]))
    v2, v3 = first ^ np.uint64(_START[2]), np.full(count, second ^ np.uint64(_START[3]))

    def turned(v: Array, by: int) -> Array:
        out: Array = v << np.uint64(by) | v >> np.uint64(64 - by)
        return out

    for number in range(words.shape[1] + 1):
        last = number == words.shape[1]
        if last:
            v2 = v2 ^ np.uint64(0xFF)
        else:
            v3 = v3 ^ words[:, number]
        for _ in range(4 if last else 2):
            v0, v2 = v0 + v1, v2 + v3
            v1, v3 = turned(v1, 13) ^ v0, turned(v3, 16) ^ v2
            v0 = turned(v0, 32)
            v2, v0 = v2 + v1, v0 + v3
            v1, v3 = turned(v1, 17) ^ v2, turned(v3, 21) ^ v0
            v2 = turned(v2, 32)
        if not last:
            v0 = v0 ^ words[:, number]
    out: Array = v0 ^ v1 ^ v2 ^ v3
    return out


class Tags:
    """Of one group."""

    def __init__(self, key: bytes, *, whole: bool) -> None:
        self._key = struct.unpack("<2Q", key)
        self.whole = whole  # packets, not only headers

    def of(self, packet: bytes) -> int:
        """With its own tag taken as zero. Data packets: of what is the same in all packets of a flow, unless whole ones
        are tagged."""
        if packet[3] in (DATA, RELIABLE) and not self.whole:
            return siphash(self._key, packet[:TAG_AT] + bytes(8) + packet[TAG_END:PREFIX_BYTES])
        head = siphash(self._key, packet[:TAG_AT] + bytes(8) + packet[TAG_END:HEADER_BYTES])
        if len(packet) <= HEADER_BYTES:
            return head
        return siphash((self._key[0] ^ head, self._key[1]), packet[HEADER_BYTES:])

    def of_rows(self, rows: Bytes) -> Array:
        """Whole packets of one length."""
        heads = rows[:, :HEADER_BYTES].copy()
        heads[:, TAG_AT:TAG_END] = 0
        first = siphash_rows((np.full(len(rows), self._key[0], np.uint64), self._key[1]), heads)
        return siphash_rows((first ^ np.uint64(self._key[0]), self._key[1]), rows[:, HEADER_BYTES:])

    def stamped(self, packet: bytes) -> bytes:
        return packet[:TAG_AT] + struct.pack("<Q", self.of(packet)) + packet[TAG_END:]

    def genuine(self, packet: bytes) -> bool:
        return packet[TAG_AT:TAG_END] == struct.pack("<Q", self.of(packet))
