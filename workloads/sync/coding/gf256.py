"""Bytes as numbers of a field of 256: what Reed-Solomon codes are made of."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from lossbench.workloads.transport.packet.wire import Bits, Bytes

POLYNOMIAL = 0x11D


@lru_cache(maxsize=1)
def _tables() -> tuple[Bytes, Bytes]:
    """(products of any two, inverse of each but 0)."""
    powers = np.zeros(510, np.uint8)
    logs = np.zeros(256, np.int64)
    value = 1
    for n in range(255):
        powers[n] = powers[n + 255] = value
        logs[value] = n
        value = value << 1 ^ (POLYNOMIAL if value & 0x80 else 0)
    products = powers[logs[:, None] + logs[None, :]]
    products[0, :] = products[:, 0] = 0
    return products, powers[(255 - logs) % 255]


def cauchy(m: int, k: int) -> Bytes:
    """m rows for k packets, of which every square part can be inverted; the first row is all ones."""
    products, inverse = _tables()
    plain = inverse[np.arange(m)[:, None] ^ (m + np.arange(k))[None, :]]
    return products[plain, inverse[plain[0]][None, :]]


def combine(matrix: Bytes, table: Bytes) -> Bytes:
    """For every row of the matrix, the sum of the table's entries by its factors."""
    products, _ = _tables()
    out = np.zeros((len(matrix), *table.shape[1:]), np.uint8)
    for row, total in zip(matrix, out, strict=True):
        for factor, part in zip(row.tolist(), table, strict=True):
            total ^= part if factor == 1 else products[factor][part]
    return out


def restore(table: Bytes, there: Bits, parity: Bytes, parity_there: Bits, matrix: Bytes) -> None:
    """Puts what is missing of `table` (rows, groups, bytes) into its place, group by group, where enough has come;
    `there` says so afterwards. What is missing must be zero."""
    missing, spare = (~there).sum(0), parity_there.sum(0)
    some = np.flatnonzero((missing > 0) & (missing <= spare))
    if not len(some):
        return
    lost, kept = ~there[:, some], parity_there[:, some]
    syndromes = combine(matrix, table[:, some]) ^ parity[:, some]
    patterns, which = np.unique(np.concatenate([lost, kept]), axis=1, return_inverse=True)
    for number, pattern in enumerate(patterns.T):
        rows = np.flatnonzero(pattern[: len(table)])
        used = np.flatnonzero(pattern[len(table) :])[: len(rows)]
        places = np.flatnonzero(which.reshape(-1) == number)
        solved = combine(invert(matrix[np.ix_(used, rows)]), syndromes[np.ix_(used, places)])
        table[np.ix_(rows, some[places])] = solved
        there[np.ix_(rows, some[places])] = True


def invert(matrix: Bytes) -> Bytes:
    """By elimination."""
    products, inverse = _tables()
    size = len(matrix)
    work: NDArray[np.uint8] = np.concatenate([matrix, np.eye(size, dtype=np.uint8)], axis=1)
    for n in range(size):
        pivot = n + int(np.argmax(work[n:, n] != 0))
        work[[n, pivot]] = work[[pivot, n]]
        work[n] = products[inverse[work[n, n]], work[n]]
        for other in range(size):
            if other != n and work[other, n]:
                work[other] ^= products[work[other, n], work[n]]
    return work[:, size:]
