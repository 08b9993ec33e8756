"""Which changes make a run fit into device memory, where arrays are placed, and the error of a step that runs out of it."""

import dataclasses

import pytest
import tensorflow as tf

from unisono.distribute import grow_gpu_memory, keep_data_on
from unisono.distribute.hardware.data_placement import data_home
from unisono.distribute.hardware.device_memory import free_memory, in_words
from unisono.distribute.hardware.memory_plan import (
    MemoryPlan,
    ModelMemory,
    memory_plans,
    plan_memory,
)

WEIGHTS = 1_000_000
LEVELS = (None, "optimizer", "weights")
ADAM = ModelMemory(weights=4 * WEIGHTS, trained=4 * WEIGHTS, optimizer_state=8 * WEIGHTS, activations=1000.0)


def of(plan: MemoryPlan) -> float:
    return (plan.weights + plan.gradients + plan.optimizer_state) / WEIGHTS


@pytest.mark.parametrize("n", [1, 2, 8, 64])
def test_bytes_for_each_weight_are_those_of_the_published_table(n):
    each = [of(plan_memory(ADAM, 1.0, 64, n, sharded=level)) for level in LEVELS]
    assert each == pytest.approx([16, 4 + 12 / n, 16 / n])


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


def test_optimizer_state_is_sharded_before_weights_and_both_before_a_pipeline():
    plans = memory_plans(ADAM, 11e6 / 0.9, 8, replicas=4)
    assert [(plan.sharded, plan.stages) for plan in plans if plan.fits][:1] == [("optimizer", 1)]
    plans = memory_plans(ADAM, 5e6 / 0.9, 8, replicas=4)
    assert next(plan.sharded for plan in plans if plan.fits) == "weights"
    assert any(plan.changes == {"pipeline"} for plan in plans)


def test_no_way_leaves_the_model_as_it_is_alone():
    assert [plan.fits for plan in memory_plans(ADAM, 1000, 8, replicas=4)] == [False]


def test_half_precision_halves_activations_and_copies_weights():
    plan = plan_memory(ADAM, 1.0, 1000, 1, half=True)
    assert plan.activations == 1e6 / 2 + 4 * WEIGHTS / 2 and plan.weights == 4 * WEIGHTS
    already = ModelMemory(4, 4, 8, activations=1e9, half_precision=True)
    assert not any("half_precision" in plan.changes for plan in memory_plans(already, 2e9, 64))


def test_pipeline_keeps_as_many_micro_batches_as_it_has_stages():
    plan = plan_memory(
        ADAM, 1.0, 1024, 8, stages=4
    )  # two copies of 512 samples, each in 16 micro-batches of 32
    assert plan.samples == 32
    assert plan.activations == 4 * 32 * 1000 / 4 and plan.weights == WEIGHTS


def test_frozen_weights_are_sharded():
    lora = ModelMemory(100 * WEIGHTS, WEIGHTS, 2 * WEIGHTS, activations=0.0)
    assert plan_memory(lora, 1.0, 8, 4, sharded="weights").weights == 100 * WEIGHTS / 4


def test_two_layers_are_whole_at_a_time():
    model = dataclasses.replace(ADAM, largest_layer=WEIGHTS // 10)
    found = [plan_memory(model, 1.0, 8, 4, sharded=level) for level in LEVELS]
    two = WEIGHTS // 5
    assert [p.gradients for p in found] == [4 * WEIGHTS, WEIGHTS + two, WEIGHTS + two]
    assert [p.weights for p in found] == [4 * WEIGHTS] * 2 + [WEIGHTS + two]
    one_layer = dataclasses.replace(ADAM, largest_layer=4 * WEIGHTS)
    plan = plan_memory(one_layer, 1.0, 8, 4, sharded="weights")
    assert (plan.weights, plan.gradients) == (4 * WEIGHTS, 4 * WEIGHTS), "at most the full size"


GIB = 2**30
TWO = ["/device:GPU:0", "/device:GPU:1"]


@pytest.fixture(autouse=True)
def default():
    yield
    keep_data_on()


def home(size, devices=TWO, dense=True, free=40 * GIB):
    return data_home(size, devices, dense, lambda device: free)


def test_arrays_that_fit_a_quarter_of_the_free_memory_are_on_every_gpu():
    found = home(10 * GIB)
    assert found.devices == tuple(TWO)
    assert found.sentence == (
        "The arrays (10.0 GiB) are on 2 GPUs: they need less than 25 % of the 40.0 GiB that are free on 2 GPUs."
    )


def test_larger_arrays_stay_on_the_host_and_one_line_says_so():
    found = home(10 * GIB + 1)
    assert found.devices == ()
    words = "The arrays (10.0 GiB) stay on the host, and batches are copied ahead: they need"
    assert found.sentence.startswith(words)


def test_the_gpu_with_the_least_free_memory_decides():
    free = {TWO[0]: 80 * GIB, TWO[1]: 4 * GIB}
    assert data_home(2 * GIB, TWO, True, free.get).devices == ()
    assert data_home(GIB, TWO, True, free.get).devices == tuple(TWO)


def test_strings_and_an_unknown_memory_keep_arrays_on_the_host():
    assert home(1, dense=False).devices == ()
    assert home(1, free=None).devices == ()


def test_without_gpus_there_is_nothing_to_decide():
    assert home(1, ["/device:CPU:0"]) == home(1, [])
    assert home(1, []).sentence == ""


def test_setting_decides_in_any_case():
    keep_data_on("device")
    assert home(100 * GIB).devices == tuple(TWO)
    keep_data_on("host")
    assert home(1).devices == ()
    keep_data_on("auto", memory_share=1)
    assert home(40 * GIB).devices == tuple(TWO)


def test_free_memory_of_a_gpu_that_is_not_there_is_unknown():
    assert free_memory("GPU:7") is None


def test_growth_is_set_for_every_gpu_and_nothing_happens_without():
    assert grow_gpu_memory() == [gpu.name for gpu in tf.config.list_physical_devices("GPU")]
    with pytest.raises(TypeError, match="enabled"):
        grow_gpu_memory(1)


def test_plan_says_its_changes():
    assert str(plan_memory(ADAM, 1.0, 64, 4)) == "unchanged"
    plan = plan_memory(ADAM, 1.0, 64, 4, half=True, sharded="weights", accumulation=2)
    assert str(plan) == "accumulation 2, half_precision, sharded weights"


def test_sizes_are_said_in_the_unit_that_fits():
    sizes = {12: "12 bytes", 2048: "2 KiB", 5 * 2**20: "5 MiB", 3 * 2**30: "3.0 GiB"}
    assert {size: in_words(size) for size in sizes} == sizes
