"""Steps traced for two absent GPUs: where TensorFlow would run each operation, and what each step would copy."""

import json

import pytest
from children import HELPERS

pytestmark = [pytest.mark.process, pytest.mark.long]

PROGRAM = HELPERS / "gpu_traces.py"
# Sample indices and their count.
INPUT_ONLY = {"AddV2", "AssignVariableOp", "Cast", "ExpandDims", "Mul", "Pack", "Reshape"}
FROM_HOST = INPUT_ONLY | {"GatherV2", "Slice"}  # the host selects the samples
OF_SHAPES = {"Cast", "ConcatV2", "DynamicStitch", "FloorDiv", "GatherV2", "Mul", "Prod", "StridedSlice"}
# The number of samples in a mean, and the shapes of a replica's tensors.
PIPELINES = FROM_HOST | OF_SHAPES | {"IteratorGetNext", "Greater", "SelectV2", "Shape", "Sub"}
RESIDENT = (
    "fit on 2",
    "fit in order on 2",
    "evaluate on 2",
    "mixed_float16 on 2",
    "XLA on 2",
    "fit on 1",
    "XLA on 1",
)
FROM_PIPELINES = ("tf.data on 2", "generator on 2", "fit from the host on 2", "tf.data of any size on 2")
ACCUMULATING = ("accumulation on 2", "accumulation on 1", "accumulation in mixed_float16 on 2")
TRAINING = tuple(c for c in (*RESIDENT, *ACCUMULATING, *FROM_PIPELINES) if c != "evaluate on 2")
EVERYDAY = (
    "shards accumulated in mixed_float16 on 2",
    "shards of text on 2",
    "text of many words on 2",
    "text of many words under XLA on 2",
    "text of any size on 2",
    "custom step on 2",
    "averaged pictures of any size on 2",
)


@pytest.fixture(scope="module")
def found(forked, tmp_path_factory):
    """The output of `gpu_traces.py`, by case."""
    printed = forked.run(PROGRAM, folder=tmp_path_factory.mktemp("traces"))
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return {line["case"]: line for line in lines}


@pytest.mark.parametrize("case", RESIDENT)
def test_arrays_on_gpus_are_read_there_and_nothing_is_sent_in_a_step(found, case):
    assert set(found[case]["host"]) <= INPUT_ONLY
    assert found[case]["sent"] == []
    assert found[case]["between_gpus"] == []


@pytest.mark.parametrize("case", [*TRAINING, *EVERYDAY, "evaluate on 2", "evaluate text on 2"])
def test_no_step_waits_for_a_gpu(found, case):
    assert found[case]["waits"] == []


@pytest.mark.parametrize("case", [*TRAINING, *EVERYDAY])
def test_no_host_operation_is_between_forward_pass_and_update(found, case):
    of_shapes = OF_SHAPES if "of any size" in case else set()
    assert set(found[case]["host_before_update"]) <= of_shapes


@pytest.mark.parametrize("case", EVERYDAY)
def test_what_several_gpus_sum_are_floats_over_nccl(found, case):
    assert {tuple(each[1:]) for each in found[case]["collectives"]} <= {("float32", "nccl")}


@pytest.mark.parametrize("case", FROM_PIPELINES)
def test_samples_go_from_the_host_to_their_own_gpu_and_not_between_gpus(found, case):
    assert set(found[case]["host"]) <= PIPELINES
    assert found[case]["between_gpus"] == []


@pytest.mark.parametrize("case", ["tf.data on 2", "generator on 2", "fit from the host on 2"])
def test_each_gpu_is_sent_its_own_samples_and_nothing_else(found, case):
    assert sorted(sent[: len("int32[4")] for sent in found[case]["sent"]) == ["float32"] * 2 + ["int32[4"] * 2


@pytest.mark.parametrize("case", [c for c in TRAINING if c.endswith("on 2")])
def test_collectives_are_nccls_in_float32_on_both_gpus(found, case):
    collectives = found[case]["collectives"]
    assert {tuple(each[1:]) for each in collectives} == {("float32", "nccl")}
    of_each = [[c for c in collectives if c[0] == device] for device in ("GPU:0", "GPU:1")]
    assert len(of_each[0]) == len(of_each[1]) == 2  # the total sample weight, then the gradients


@pytest.mark.parametrize("case", ["evaluate on 2", "predict on 2"])
def test_evaluation_and_prediction_need_no_collective(found, case):
    assert found[case]["collectives"] == []
    assert found[case]["between_gpus"] == []


def test_every_operation_on_a_gpu_has_a_kernel_there_and_both_have_the_same_work(found):
    for case, line in found.items():
        assert line["without_kernel"] == [], case
        if case.endswith("on 2") and "pipeline" not in case and "predict" not in case:
            first, second = line["gpu"]["GPU:0"], line["gpu"]["GPU:1"]
            assert abs(first - second) <= 0.2 * first, case


def test_stages_of_a_pipeline_exchange_activations_and_only_scalars_go_to_the_host(found):
    line = found["pipeline on 2"]
    assert min(line["gpu"].values()) > 100
    assert set(line["sent"]) <= {"float32[]", "int64[2]"}  # the learning rate, seeds
    between = [name.rpartition("/")[2] for name in line["between_gpus"]]
    assert sum("stage_" in name for name in line["between_gpus"]) == 4, "two micro-batches, there and back"
    assert len(between) <= 7, "and targets and their weights"
