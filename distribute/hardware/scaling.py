"""Scaling estimate: simulates any number of replicas from a measured step, its bytes and the speed of the links."""

import dataclasses
import math
import statistics
from collections.abc import Iterable

from ..arguments import number, one_of, show, whole_number

ALGORITHMS = ("ring", "tree", "hierarchical")
POWERS_OF_TWO = tuple(2**n for n in range(13))


@dataclasses.dataclass(frozen=True)
class ScaledStep:
    """A step on a number of replicas, each with as many samples as the measured replica.

    Attributes:
        replicas: int; the number of replicas.
        step_seconds: float; the whole step.
        sum_seconds: float; the all-reduce of the gradients, including the part that overlaps with the backward pass.
        speedup: float; samples a second, relative to one replica.
        efficiency: float, 0 to 1; `speedup / replicas`.
        sent_bytes: float; the bytes that each machine sends over the network in a step.
        memory_bytes: float; the memory of each replica: weights, gradients, optimizer state, activations.
    """

    replicas: int
    step_seconds: float
    sum_seconds: float
    speedup: float
    efficiency: float
    sent_bytes: float
    memory_bytes: float


def simulate_scaling(
    step_seconds: float,
    gradient_bytes: float,
    link_bytes_per_second: float = 0.7e9,
    replicas: Iterable[int] = POWERS_OF_TWO,
    *,
    algorithm: str = "ring",
    latency: float = 200e-6,
    collectives: int = 1,
    replicas_per_worker: int = 1,
    local_bytes_per_second: float | None = None,
    overlap: float = 0.0,
    jitter: float = 0.0,
    state_per_weight: int = 2,
    activation_bytes: float = 0.0,
) -> list[ScaledStep]:
    """Estimate the step time of synchronous data parallelism, and each replica's memory, on other numbers of replicas.

    The global batch grows with the replicas. Memory is that of `MirroredStrategy` and `MultiWorkerMirroredStrategy`: every
    replica has all weights, gradients and optimizer state. The defaults of links are those measured for two processes with
    one core each, over gRPC (docs/design/0023).

    Args:
        step_seconds: float; the measured step of one replica alone, on its own device.
        gradient_bytes: float; bytes of all gradients: 4 times the number of weights in float32.
        link_bytes_per_second: float; bandwidth between machines. A network of 10 Gbit/s has 1.25e9 at best.
        replicas: ints, 1 to 4,096 by default. Machines of `replicas_per_worker` replicas are filled one after the other.
        algorithm: "ring", "tree" or "hierarchical"; the all-reduce algorithm. TensorFlow's collectives are rings.
        latency: float; seconds for one message.
        collectives: int; all-reduces of a step: one for each gradient of 1 MiB or more, and one for all others.
        replicas_per_worker: int; devices in one machine.
        local_bytes_per_second: float or None; bandwidth between devices of a machine. None: as
            `link_bytes_per_second`.
        overlap: float, 0 to 1; share of the step that overlaps with all-reduces: 0 if they begin after the backward pass.
        jitter: float; the standard deviation of a replica's step, as a share of it. All wait for the slowest.
        state_per_weight: int; optimizer variables for each weight: 0 for SGD, 1 with momentum, 2 for Adam.
        activation_bytes: float; other memory that a step needs on a device.

    Returns:
        A list of `ScaledStep`, one for each of `replicas`.

    Raises:
        ValueError: an argument is out of its range.

    Examples:
        >>> for step in unisono.distribute.simulate_scaling(0.23, 102e6, 1.25e9, replicas=[1, 8, 64], overlap=0.5):
        ...     print(step.replicas, f"{step.efficiency:.0%}")
        1 100%
        8 88%
        64 76%
    """
    number("step_seconds", step_seconds, above=0)
    number("gradient_bytes", gradient_bytes, least=0)
    number("link_bytes_per_second", link_bytes_per_second, above=0)
    if local_bytes_per_second is None:
        local_bytes_per_second = link_bytes_per_second
    number("local_bytes_per_second", local_bytes_per_second, above=0)
    number("latency", latency, least=0)
    number("overlap", overlap, least=0, most=1)
    number("jitter", jitter, least=0)
    number("activation_bytes", activation_bytes, least=0)
    whole_number("state_per_weight", state_per_weight, least=0)
    latency *= whole_number("collectives", collectives)
    within = whole_number("replicas_per_worker", replicas_per_worker)
    one_of("algorithm", algorithm, ALGORITHMS)
    links = (
        (link_bytes_per_second, latency),
        (local_bytes_per_second, min(latency, collectives * _LOCAL_LATENCY)),
    )
    if not isinstance(replicas, Iterable) or isinstance(replicas, str):
        raise ValueError(f"`replicas` must be a list such as [1, 8, 64]. Received: {show(replicas)}")
    memory = gradient_bytes * (2 + state_per_weight) + activation_bytes
    result = []
    for count in replicas:
        count = whole_number("replicas", count)
        sums, sent = _sum_seconds(algorithm, count, within, gradient_bytes, *links)
        computing = step_seconds * (1 + jitter * _slowest(count))
        step = computing + max(0.0, sums - overlap * computing)
        speedup = count * step_seconds * (1 + jitter * _slowest(1)) / step
        result.append(ScaledStep(count, step, sums, speedup, speedup / count, sent, memory))
    return result


_LOCAL_LATENCY = 10e-6  # seconds, between devices of a machine
_Link = tuple[float, float]  # bytes per second, and the latency in seconds


def _estimate_ring(partners: int, size: float, bandwidth: float, latency: float) -> float:
    return 2 * (partners - 1) * (latency + size / partners / bandwidth)


def _tree(partners: int, size: float, bandwidth: float, latency: float) -> float:
    return 2 * (math.ceil(math.log2(partners)) * latency + size / bandwidth) if partners > 1 else 0.0


def _sum_seconds(
    algorithm: str, replicas: int, within: int, size: float, network: _Link, local: _Link
) -> tuple[float, float]:
    """Return seconds for the all-reduce, and the bytes that each machine sends over the network.

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
        return reduce(replicas, size, *local), 0.0
    if algorithm == "hierarchical":
        return _estimate_ring(within, size, *local) + _estimate_ring(workers, size, *network), 2 * (
            workers - 1
        ) / workers * size
    bandwidth, latency = network if within == 1 else min(network, (local[0], network[1]))
    sent = 2 * size if algorithm == "tree" else 2 * (replicas - 1) / replicas * size
    return reduce(replicas, size, bandwidth, latency), sent


def _slowest(replicas: int) -> float:
    """Return the expected largest of so many draws of a normal distribution, in standard deviations (Blom, 1958)."""
    return statistics.NormalDist().inv_cdf((replicas - 0.375) / (replicas + 0.25))
