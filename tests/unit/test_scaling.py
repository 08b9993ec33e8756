"""The scaling estimate of the benchmarks, compared with the closed forms of its sources, and their limits."""

import math

import pytest

from benchmarks.scaling_estimate import simulate_scaling

SIZE, SPEED, LATENCY = 1e8, 1e9, 1e-4


def sums(algorithm, replicas, **arguments):
    [step] = simulate_scaling(1.0, SIZE, SPEED, [replicas], algorithm=algorithm, latency=LATENCY, **arguments)
    return step.sum_seconds


@pytest.mark.parametrize("replicas", [1, 2, 3, 64, 4096])
def test_sums_take_what_the_sources_say(replicas):
    ring = 2 * (replicas - 1) * LATENCY + 2 * (replicas - 1) / replicas * SIZE / SPEED
    assert sums("ring", replicas) == pytest.approx(ring)
    levels = math.ceil(math.log2(replicas))
    tree = 2 * levels * LATENCY + 2 * SIZE / SPEED if replicas > 1 else 0.0
    assert sums("tree", replicas) == pytest.approx(tree)
    assert sums("hierarchical", replicas) == pytest.approx(ring)  # one replica per machine


def test_every_collective_has_the_latency_of_its_messages():
    for replicas in (1, 2, 64):
        more = sums("ring", replicas, collectives=7) - sums("ring", replicas)
        assert more == pytest.approx(6 * 2 * (replicas - 1) * LATENCY)


def test_machines_sum_inside_first():
    inside = {"replicas_per_worker": 8, "local_bytes_per_second": 1e10}
    local, between = 2 * 7 * (1e-5 + SIZE / 8 / 1e10), 2 * 3 * (LATENCY + SIZE / 4 / SPEED)
    assert sums("hierarchical", 32, **inside) == pytest.approx(local + between)
    assert sums("hierarchical", 8, **inside) == pytest.approx(local)
    full = sums("hierarchical", 32, **inside)
    assert sums("hierarchical", 27, **inside) == full, "the last machine is not full"
    assert sums("ring", 32, **inside) > sums("hierarchical", 32, **inside)


def test_step_waits_for_the_slowest_and_for_what_is_not_hidden():
    alone, many = simulate_scaling(1.0, SIZE, SPEED, [1, 16], latency=0.0)
    assert (alone.step_seconds, alone.speedup, alone.efficiency) == (1.0, 1.0, 1.0)
    assert many.step_seconds == pytest.approx(1.0 + many.sum_seconds)
    assert many.speedup == pytest.approx(16 / many.step_seconds) == pytest.approx(16 * many.efficiency)
    [hidden] = simulate_scaling(1.0, SIZE, SPEED, [16], latency=0.0, overlap=0.1)
    assert hidden.step_seconds == pytest.approx(many.step_seconds - 0.1)
    [whole] = simulate_scaling(1.0, SIZE, SPEED, [16], overlap=1.0)
    assert whole.efficiency == 1.0
    [uneven] = simulate_scaling(1.0, 0, SPEED, [16], jitter=0.1, latency=0.0)
    assert uneven.step_seconds == pytest.approx(1.1766, abs=3e-3)  # of 16 normal draws: 1.766; Blom's is near


def test_figures_of_resnet_on_256_gpus():
    machine = {"replicas_per_worker": 8, "local_bytes_per_second": 2e10, "latency": 50e-6}
    few, many = simulate_scaling(0.23, 102e6, 6.25e9, [8, 256], algorithm="hierarchical", **machine)
    assert 0.85 < many.efficiency / few.efficiency < 0.93  # about 0.9 was published; docs/guides/scaling.md
