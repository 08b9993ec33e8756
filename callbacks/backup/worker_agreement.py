"""What the workers of one training have to tell each other about backups: small byte strings, and one number.

Context: host. Every worker calls the same function at the same step: the calls meet (`distribute.agreement.exchange`).
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from ...distribute.workers import cluster
from ...distribute.workers.agreement import exchange, spans_workers

# Whole numbers up to 2**53 are exact in float64, the numbers that are exchanged.
_BYTES_PER_NUMBER = 6


def num_workers(strategy: tf.distribute.Strategy) -> int:
    """Worker processes that run the same step together; 1 for every strategy within one process."""
    return cluster.num_workers() if spans_workers(strategy) else 1


def worker_index(strategy: tf.distribute.Strategy) -> int:
    """This worker's number, 0 to `num_workers - 1`; replicas are numbered in the order of the workers."""
    return cluster.worker_index() if spans_workers(strategy) else 0


def largest(strategy: tf.distribute.Strategy, value: float) -> float:
    """The largest of the values that the workers give; `value` itself where there is one worker."""
    return max(row[0] for row in exchange([value], strategy))


def meet(strategy: tf.distribute.Strategy) -> None:
    """Returns when all workers have come here."""
    largest(strategy, 0.0)


def gather_bytes(strategy: tf.distribute.Strategy, payload: bytes) -> list[bytes]:
    """What each worker gave, in the order of the workers; every worker gets all of it."""
    if not spans_workers(strategy):
        return [payload]
    sizes = [int(row[0]) for row in exchange([float(len(payload))], strategy)]
    rows = exchange(_to_numbers(payload, max(sizes)), strategy)
    return [_to_bytes(row)[:size] for row, size in zip(rows, sizes)]


def _to_numbers(payload: bytes, size: int) -> list[float]:
    """`payload`, filled up with zeros to `size`, as whole numbers of six bytes each."""
    words = np.zeros([-(-size // _BYTES_PER_NUMBER), 8], np.uint8)
    padded = payload.ljust(len(words) * _BYTES_PER_NUMBER, b"\0")
    words[:, :_BYTES_PER_NUMBER] = np.frombuffer(padded, np.uint8).reshape(-1, _BYTES_PER_NUMBER)
    return words.view("<u8")[:, 0].astype(np.float64).tolist()


def _to_bytes(numbers: list[float]) -> bytes:
    words = np.asarray(numbers, np.float64).astype("<u8")[:, None].view(np.uint8)
    return words[:, :_BYTES_PER_NUMBER].tobytes()
