"""Cutting models into stages: rejected models, costs, placement, and the Keras internals that this relies on."""

from __future__ import annotations

import socket

import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono
from unisono.distribute.hardware.devices import resolve_devices
from unisono.distribute.pipeline import Pipeline, current_pipeline
from unisono.distribute.pipeline.remote import connect
from unisono.trainer.pipeline.planning.costs import estimate, measure
from unisono.trainer.pipeline.planning.graph import Chain
from unisono.trainer.pipeline.planning.placement import follow_inputs

layers = keras.layers
AB = ["CPU:0", "CPU:1"]


def chain_of(*sizes: int) -> keras.Model:
    dense = [layers.Dense(n, name=f"d{i}") for i, n in enumerate(sizes)]
    return keras.Sequential([keras.Input((4,)), *dense])


def with_skip() -> keras.Model:
    inputs = keras.Input((4,), name="x")
    a = layers.Dense(4, name="a")(inputs)
    b = layers.Dense(4, name="b")(a)
    c = layers.Dense(4, name="c")(b) * 2.0
    return keras.Model(inputs, layers.Add(name="d")([c, a, inputs]))


def test_blocks_are_the_layers_with_the_operations_after_them():
    chain = Chain(with_skip())
    assert [block.name for block in chain.blocks] == ["a", "b", "c", "d"]
    assert [len(block.nodes) for block in chain.blocks] == [1, 1, 2, 1]
    assert chain.groups() == [1, 1, 1, 1]


def test_cut_sends_what_later_stages_need_also_over_two_cuts():
    model = with_skip()
    stages = Chain(model).cut([1, 2, 1])
    a = id(model.get_layer("a").output)
    assert stages[0].outputs == [a]
    assert a in stages[1].inputs and a in stages[2].inputs
    assert id(model.inputs[0]) in stages[2].inputs, "a later stage may use an input"
    assert len(stages[1].outputs) == len(stages[2].outputs) == 1
    assert [len(stage.weights) for stage in stages] == [2, 4, 0]


def test_nested_models_are_blocks():
    inner = keras.Sequential([layers.Dense(3), layers.Dense(3)], name="inner")
    chain = Chain(keras.Sequential([keras.Input((4,)), inner, layers.Dense(2, name="last")]))
    assert [block.name for block in chain.blocks] == ["inner", "last"]
    assert len(chain.cut([1, 1])[0].weights) == 4


def test_partition_by_counts_and_by_names():
    def sizes(partition, stages=2):
        return Pipeline(["CPU:0"] * stages, 2, partition=partition).plan(chain_of(1, 2, 3, 4)).sizes

    assert sizes([1, 3]) == [1, 3]
    assert sizes(["d2"]) == [2, 2]
    assert sizes([], stages=1) == [4]
    for wrong in ([4, 0], [1, 1, 2], [True, 3], ["d1", "d2"]):
        with pytest.raises(ValueError, match=r"`partition` must be .auto., 2 positive numbers of layers"):
            sizes(wrong)
    for wrong in ([2, 3], ["d0"]):
        with pytest.raises(ValueError, match="`partition` must have layer counts that sum to 4, or names"):
            sizes(wrong)
    with pytest.raises(ValueError, match=r"`partition` must have .* in the model's order"):
        sizes(["d2", "d1"], stages=3)
    with pytest.raises(ValueError, match="`partition` names the layer 'x'"):
        sizes(["x"])


def test_shared_layers_are_named_and_stay_in_one_stage():
    inputs = keras.Input((4,))
    shared = layers.Dense(4, name="twice")
    x = layers.Dense(4, name="first")(inputs)
    x = layers.Dense(4, name="between")(shared(x))
    model = keras.Model(inputs, layers.Dense(1, name="last")(shared(x)))
    chain = Chain(model)
    assert [block.name for block in chain.blocks] == ["first", "twice", "between", "last"]
    assert chain.groups() == [1, 2, 1]
    with pytest.raises(ValueError, match="`partition` cuts the shared layer 'twice' before layer 'between'"):
        chain.sizes_of([2, 2])
    with pytest.raises(ValueError, match=r"into 3 stages at most, not 4: the shared layer 'twice' must stay"):
        chain.check_enough(4)
    assert Pipeline(["CPU:0"] * 3, 2).plan(model).sizes == [1, 2, 1]


class Tied(layers.Layer):
    """Multiplies by the transposed kernel of another layer."""

    def __init__(self, other, **kwargs):
        super().__init__(**kwargs)
        self.other = other

    def call(self, x):
        return keras.ops.matmul(x, keras.ops.transpose(self.other.kernel))


def test_shared_variables_name_their_layers():
    table = layers.Dense(4, use_bias=False, name="table")
    model = keras.Sequential(
        [keras.Input((4,)), table, layers.Dense(4, name="middle"), Tied(table, name="again")]
    )
    chain = Chain(model)
    assert chain.groups() == [3]
    with pytest.raises(ValueError, match="cuts the variables shared by the layers 'again', 'table'"):
        chain.sizes_of([1, 2])


def test_a_layer_without_variables_may_be_used_in_two_stages():
    relu = layers.ReLU(name="relu")
    inputs = keras.Input((4,))
    x = relu(layers.Dense(4)(inputs))
    model = keras.Model(inputs, relu(layers.Dense(4)(x)))
    assert Chain(model).groups() == [1, 1, 1]


class Subclassed(unisono.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1)

    def call(self, x):
        return self.dense(x)


class Shrinking(layers.Dense):
    """Assigns to a trainable variable during its call, as `SpectralNormalization` does."""

    def call(self, x, training=False):
        if training:
            self.kernel.assign(self.kernel * 0.5)
        return super().call(x)


class CustomStep(unisono.Sequential):
    def train_step(self, data):
        return super().train_step(data)


def test_what_cannot_be_cut_is_rejected_before_the_first_step_and_changes_nothing():
    x, y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")

    def fit(make, **kwargs):
        with Pipeline(AB, 2).scope():
            model = make()
            model.compile("sgd", "mse", **kwargs)
        model.fit(x, y, batch_size=4, verbose=0)

    def two(layer=None, kind=unisono.Sequential):
        return kind([keras.Input((4,)), layer or layers.Dense(2), layers.Dense(1)])

    with pytest.raises(ValueError, match="its call is Python code, not a graph of layers"):
        fit(Subclassed)
    with pytest.raises(ValueError, match=r"CustomStep.train_step is a custom step"):
        fit(lambda: two(kind=CustomStep))
    with pytest.raises(ValueError, match="shrinking/kernel' is trainable and assigned by a layer's call"):
        fit(lambda: two(Shrinking(2, name="shrinking")))
    with pytest.raises(ValueError, match="jit_compile=True is not possible in a Pipeline"):
        fit(two, jit_compile=True)


def test_scope_is_rejected_inside_of_a_strategy_and_ends():
    pipeline = Pipeline(["CPU:0"], 1)
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        with pytest.raises(ValueError, match="replicas=R"), pipeline.scope():
            pass
    with pipeline.scope():
        assert current_pipeline() is pipeline
        with tf.distribute.OneDeviceStrategy("CPU:0").scope(), pytest.raises(ValueError, match="replicas=R"):
            unisono.Sequential([layers.Dense(1)])
    assert current_pipeline() is None


def test_device_names_are_understood_in_all_spellings():
    full = "/job:localhost/replica:0/task:0/device:CPU:1"
    assert resolve_devices(["CPU:1", "/cpu:1", "/device:CPU:1", full]) == [full] * 4


def test_connect_without_addresses_or_answer_is_rejected_in_time(monkeypatch):
    monkeypatch.delenv("UNISONO_STAGES", raising=False)
    with pytest.raises(ValueError, match="launch --stages K"):
        connect()
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, but not listening
        address = f"127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(TimeoutError, match=rf"No stage answers at '{address}' within 0.2 s"):
            connect([address], timeout=0.2)


def test_estimated_costs_count_products_and_what_backward_keeps():
    three = layers.Dense(20, use_bias=False), layers.Activation("tanh"), layers.Dense(5, use_bias=False)
    model = keras.Sequential([keras.Input((10,)), *three])
    dense, tanh, last = estimate(Chain(model), samples=8)
    assert dense.forward == 2 * 8 * 10 * 20 and dense.backward == 2 * dense.forward
    assert last.forward == 2 * 8 * 20 * 5
    assert dense.weights == 4 * 10 * 20 and dense.fixed == 0
    assert tanh.activations == 4 * 8 * 20 and last.activations == 0
    assert [cost.sends for cost in (dense, tanh)] == [4 * 8 * 20] * 2


def test_estimated_costs_know_convolutions_and_survive_layers_that_cannot_be_traced():
    class Picky(layers.Layer):
        def compute_output_spec(self, x):
            return keras.KerasTensor(x.shape, x.dtype)

        def call(self, x):
            raise RuntimeError("only symbolic")

    model = keras.Sequential([keras.Input((8, 8, 3)), layers.Conv2D(4, 3, use_bias=False), Picky()])
    convolution, picky = estimate(Chain(model), samples=2)
    assert convolution.forward == 2 * (2 * 6 * 6 * 4) * (3 * 3 * 3)
    assert convolution.backward >= convolution.forward
    assert picky.forward == 0


def test_measured_costs_are_seconds_and_change_no_state():
    model = keras.Sequential(
        [keras.Input((16,)), layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(4)]
    )
    before = [np.array(v) for v in model.variables]
    costs = measure(Chain(model), samples=4, device="CPU:1", repeats=1)
    assert all(cost.unit == "seconds" and cost.forward > 0 for cost in costs)
    assert all(np.array_equal(a, np.array(b)) for a, b in zip(before, model.variables))


def test_memory_limit_moves_the_cut_and_is_rejected_where_it_cannot_be_met():
    sizes = [64, 64, 64, 64]
    free = Pipeline(AB, 2).plan(chain_of(*sizes), batch_size=8)
    needs = free.memory(0, 0, 2)
    assert free.sizes == [2, 2]
    tight = Pipeline(AB, 2, memory_limit=needs * 2)
    assert tight.plan(chain_of(*sizes), batch_size=8).sizes == [2, 2]
    small = Pipeline(AB, 2, memory_limit=needs / 1.5, partition=[1, 3])
    with pytest.raises(ValueError, match="must be at least the estimated need of stage 1"):
        small.plan(chain_of(*sizes), batch_size=8)


def test_summary_and_timeline_say_what_is_expected(tmp_path):
    model = chain_of(8, 8, 8, 8)
    pipeline = Pipeline(AB, 4, schedule="1f1b", rematerialize=True)
    text = pipeline.summary(model)
    assert "2: d0 to d1" in text and "CPU:1" in text and "4 micro-batches" in text and "bubble" in text
    pipeline.timeline(model, transfer=1.0).save(tmp_path / "step.svg")
    drawn = (tmp_path / "step.svg").read_text()
    assert drawn.startswith("<svg") and "viewBox" in drawn  # so that a page may show it smaller
    last = next(part for part in drawn.split("<text ") if " operations</text>" in part)
    assert 'text-anchor="end"' in last  # within the drawing


def test_operations_follow_the_largest_input():
    with tf.device("CPU:1"):
        variable = tf.Variable(tf.ones([10]))
    devices = {}

    @tf.function
    def run(small):
        with follow_inputs():
            with tf.device("CPU:2"):
                big = tf.ones([4]) * small
            devices["big"] = (big * small).device
            devices["read"] = (tf.convert_to_tensor(variable) + small).device

            def inside():
                devices["cond"] = (variable * small).device
                return big * 2.0

            return tf.cond(small > 0, inside, lambda: big)

    run(tf.constant(1.0))
    assert "CPU:2" in devices["big"] and "CPU:1" in devices["read"] and "CPU:1" in devices["cond"]
