"""Estimates the step on any number of replicas from one measured step, its bytes and the speed of the links."""

import dataclasses
import math
import statistics
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True)
class ScaledStep:
    """A step on a number of replicas, each with as many samples as the measured replica; `sum_seconds` is its all-reduce."""

    replicas: int
    step_seconds: float
    sum_seconds: float
    speedup: float
    efficiency: float


def simulate_scaling(
    step_seconds: float,
    gradient_bytes: float,
    link_bytes_per_second: float,
    replicas: Iterable[int],
    *,
    algorithm: str = "ring",
    latency: float = 200e-6,
    collectives: int = 1,
    replicas_per_worker: int = 1,
    local_bytes_per_second: float | None = None,
    overlap: float = 0.0,
    jitter: float = 0.0,
) -> list[ScaledStep]:
    """Estimate the step time of synchronous data parallelism on other numbers of replicas.

    The global batch grows with the replicas. Machines of `replicas_per_worker` replicas are filled one after the other;
    `local_bytes_per_second` is the bandwidth inside of a machine. `algorithm` is "ring", "tree" or "hierarchical".
    `latency` is that of one message, and `collectives` are the all-reduces of a step. `overlap` is the share of the step
    that overlaps with all-reduces, and `jitter` the standard deviation of a replica's step, as a share of it.
    """
    latency *= collectives
    links = (
        (link_bytes_per_second, latency),
        (local_bytes_per_second or link_bytes_per_second, min(latency, collectives * _LOCAL_LATENCY)),
    )
    result = []
    for count in replicas:
        sums = _sum_seconds(algorithm, count, replicas_per_worker, gradient_bytes, *links)
        computing = step_seconds * (1 + jitter * _slowest(count))
        step = computing + max(0.0, sums - overlap * computing)
        speedup = count * step_seconds * (1 + jitter * _slowest(1)) / step
        result.append(ScaledStep(count, step, sums, speedup, speedup / count))
    return result


_LOCAL_LATENCY = 10e-6  # seconds, between devices of a machine
_Link = tuple[float, float]  # bytes per second, and the latency in seconds


def _estimate_ring(partners: int, size: float, bandwidth: float, latency: float) -> float:
    return 2 * (partners - 1) * (latency + size / partners / bandwidth)


def _tree(partners: int, size: float, bandwidth: float, latency: float) -> float:
    return 2 * (math.ceil(math.log2(partners)) * latency + size / bandwidth) if partners > 1 else 0.0


def _sum_seconds(
    algorithm: str, replicas: int, within: int, size: float, network: _Link, local: _Link
) -> float:
    """Return the seconds of an all-reduce.

    With B bytes of gradients, n partners, bandwidth b and latency l of a message, times the collectives, it takes

        ring          2 (n - 1) l + 2 (n - 1) / n B / b: every byte goes around once to be summed, once to be distributed
        tree          2 ceil(log2 n) l + 2 B / b: two trees, each with half of the bytes, in pieces, so that levels overlap
        hierarchical  a ring of the replicas of each machine, and a ring of the machines over the network

    Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH" (2005);
    Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009); Sanders, Speck,
    Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009).
    """
    workers, reduce = -(-replicas // within), _tree if algorithm == "tree" else _estimate_ring
    if workers == 1:
        return reduce(replicas, size, *local)
    if algorithm == "hierarchical":
        return _estimate_ring(within, size, *local) + _estimate_ring(workers, size, *network)
    bandwidth, latency = network if within == 1 else min(network, (local[0], network[1]))
    return reduce(replicas, size, bandwidth, latency)


def _slowest(replicas: int) -> float:
    """Return the expected largest of so many draws of a normal distribution, in standard deviations (Blom, 1958)."""
    return statistics.NormalDist().inv_cdf((replicas - 0.375) / (replicas + 0.25))
