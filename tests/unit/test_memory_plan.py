"""Which changes make a training run fit into device memory: arithmetic, without a model."""

import dataclasses

import pytest

from unisono.commands.plan import code_of
from unisono.distribute.hardware.memory_plan import (
    MemoryPlan,
    ModelMemory,
    _plan,
    memory_plans,
    micro_batches,
)

WEIGHTS = 1_000_000
LEVELS = (None, "optimizer", "gradients", "weights")
ADAM = ModelMemory(weights=4 * WEIGHTS, trained=4 * WEIGHTS, optimizer_state=8 * WEIGHTS, activations=1000.0)


def of(plan: MemoryPlan) -> float:
    return (plan.weights + plan.gradients + plan.optimizer_state) / WEIGHTS


@pytest.mark.parametrize("n", [1, 2, 8, 64])
def test_bytes_for_each_weight_are_those_of_the_published_table(n):
    each = [of(_plan(ADAM, 1.0, 64, n, sharded=level)) for level in LEVELS]
    assert each == pytest.approx([16, 8 + 8 / n, 4 + 12 / n, 16 / n])


def test_what_fits_as_it_is_needs_nothing():
    (plan,) = memory_plans(ADAM, 17 * WEIGHTS / 0.9 + 1, 1000)
    assert plan.fits and not plan.changes and plan.total == 17 * WEIGHTS


def test_nine_tenths_of_the_memory_may_be_used():
    assert not memory_plans(ADAM, 17 * WEIGHTS / 0.9 - 1, 1000)[0].fits


def test_many_activations_are_accumulated_and_no_more_often_than_needed():
    large = ModelMemory(4 * WEIGHTS, 4 * WEIGHTS, 8 * WEIGHTS, activations=1e6)
    first, *ways = memory_plans(large, 40e6 / 0.9, 64)
    assert not first.fits and first.activations == 64e6
    assert ways[0].accumulation == 4, (
        "16 MB of weights, gradients and optimizer_state, 4 of accumulators, and 16 samples of 1 MB"
    )
    assert ways[0].samples == 16 and ways[0].accumulators == 4 * WEIGHTS and ways[0].fits
    assert [way.changes for way in ways] == [{"accumulation"}], "half precision alone does not fit"


def test_optimizer_state_are_sharded_before_gradients_and_both_before_a_pipeline():
    plans = memory_plans(ADAM, 11e6 / 0.9, 8, replicas=4)
    assert [(plan.sharded, plan.stages) for plan in plans if plan.fits][:1] == [("optimizer", 1)]
    plans = memory_plans(ADAM, 8e6 / 0.9, 8, replicas=4)
    assert next(plan.sharded for plan in plans if plan.fits) == "gradients"
    assert any(plan.changes == {"pipeline"} for plan in plans)


def test_no_way_leaves_the_model_as_it_is_alone():
    assert [plan.fits for plan in memory_plans(ADAM, 1000, 8, replicas=4)] == [False]


def test_half_precision_halves_activations_and_copies_weights():
    plan = _plan(ADAM, 1.0, 1000, 1, half_precision=True)
    assert plan.activations == 1e6 / 2 + 4 * WEIGHTS / 2 and plan.weights == 4 * WEIGHTS
    already = ModelMemory(4, 4, 8, activations=1e9, half_precision=True)
    assert not any("half_precision" in plan.changes for plan in memory_plans(already, 2e9, 64))


def test_optimizer_state_of_a_pipeline_are_shared_by_its_replicas():
    plain, sharded = (_plan(ADAM, 1.0, 1024, 8, stages=4, sharded=level) for level in (None, "optimizer"))
    assert sharded.optimizer_state == plain.optimizer_state / 2
    assert sharded.total - sharded.optimizer_state == plain.total - plain.optimizer_state
    assert sharded.changes == {"pipeline", "sharded"}
    assert [line for line in code_of(sharded, 1024, 8) if "sharded" in line] == [
        'unisono.distribute.sharded(strategy, level="optimizer")'
    ]


def test_pipeline_keeps_as_many_micro_batches_as_it_has_stages():
    plan = _plan(ADAM, 1.0, 1024, 8, stages=4)  # two copies of 512 samples, each in 16 micro-batches of 32
    assert plan.samples == 32 and micro_batches(plan, 1024, 8) == 16
    assert plan.activations == 4 * 32 * 1000 / 4 and plan.weights == WEIGHTS


def test_frozen_weights_are_sharded_and_vectors_are_whole():
    lora = ModelMemory(100 * WEIGHTS, WEIGHTS, 2 * WEIGHTS, activations=0.0, vectors=4 * WEIGHTS)
    assert _plan(lora, 1.0, 8, 4, sharded="weights").weights == (4 + 96 / 4) * WEIGHTS


def test_two_layers_are_whole_at_a_time():
    model = dataclasses.replace(ADAM, largest_layer=WEIGHTS // 10)
    found = [_plan(model, 1.0, 8, 4, sharded=level) for level in LEVELS]
    two = WEIGHTS // 5
    assert [p.gradients for p in found] == [4 * WEIGHTS, 4 * WEIGHTS, WEIGHTS + two, WEIGHTS + two]
    assert [p.weights for p in found] == [4 * WEIGHTS] * 3 + [WEIGHTS + two]
    one_layer = dataclasses.replace(ADAM, largest_layer=4 * WEIGHTS)
    plan = _plan(one_layer, 1.0, 8, 4, sharded="weights")
    assert (plan.weights, plan.gradients) == (4 * WEIGHTS, 4 * WEIGHTS), "at most the full size"
