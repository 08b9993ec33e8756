"""Attention in blocks equals Keras', with its gradients, wherever a step computes it."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import FLOAT32, FLOAT64, assert_close, graphs_of

import unisono
from unisono.compat.tensorflow_graphs.named_calls import kind_of
from unisono.distribute.attention import blocks, keras_attention
from unisono.distribute.attention.operation import BACKWARD, FORWARD
from unisono.distribute.step_context import StepContext, step_scope

R = np.random.default_rng(0)
KEPT = 0.6
MASKS = {
    "none": None,
    "keys": (3, 1, 1, 10),
    "all": (3, 4, 13, 10),
    "no batch": (13, 10),
    "queries": (1, 1, 13, 1),
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks of few tokens, of which the last one is not full."""
    monkeypatch.setattr(blocks, "SIZE", 4)


def in_step(fn):
    """Compute `fn` as a step of ours does."""

    def compute(*args):
        with step_scope(StepContext(0, 1, 1, 1)):
            return fn(*args)

    return compute


def draw(*shape):
    return tf.constant(R.normal(size=shape))


@pytest.mark.short("True-no batch")
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("causal", [True, False])
def test_blocks_equal_keras_with_first_and_second_gradients(mask, causal):
    found = None if MASKS[mask] is None else tf.constant(R.random(MASKS[mask]) < KEPT)
    q, k, v, w = draw(3, 13, 4, 4), draw(3, 10, 2, 4), draw(3, 10, 2, 6), draw(3, 13, 4, 6)

    def compute(flash, q, k, v):
        with tf.GradientTape() as outer:
            outer.watch([q, k, v])
            with tf.GradientTape() as tape:
                tape.watch([q, k, v])
                out = keras.ops.dot_product_attention(
                    q, k, v, mask=found, is_causal=causal, flash_attention=flash
                )
                loss = tf.reduce_sum(out * w)
            first = tape.gradient(loss, [q, k, v])
            squares = sum(tf.reduce_sum(each**2) for each in first)
        return [out, *first, *outer.gradient(squares, [q, k, v])]

    expected = compute(False, q, k, v)
    eager = in_step(lambda *given: compute(True, *given))
    open_batch = [tf.TensorSpec([None, *each.shape[1:]], each.dtype) for each in (q, k, v)]
    graph = tf.function(eager, autograph=False, input_signature=open_batch)
    assert_close(eager(q, k, v), expected, FLOAT64, "eager")
    assert_close(graph(q, k, v), expected, FLOAT64, "graph")
    if mask in ("none", "all"):
        xla = tf.function(eager, autograph=False, jit_compile=True)
        assert_close(xla(q, k, v), expected, FLOAT64, "XLA")


def test_layers_with_equal_extents_share_two_functions():
    q = draw(2, 8, 2, 4)

    def compute(q):
        with tf.GradientTape() as tape:
            tape.watch(q)
            out = q
            for _ in range(3):
                out = keras.ops.dot_product_attention(out, q, q, flash_attention=True)
            loss = tf.reduce_sum(out)
        return tape.gradient(loss, q)

    graph = tf.function(in_step(compute), autograph=False).get_concrete_function(q).graph
    calls = [op for op in graph.get_operations() if kind_of(op) in (FORWARD, BACKWARD)]
    assert len(calls) == 6
    assert len({op.get_attr("f").name for op in calls}) == 2


def test_no_block_copies_what_all_blocks_have():
    """A write to a tensor that a loop carries copies it, which made the work grow with the cube of the text."""
    q = draw(2, 40, 2, 4)

    def compute(q):
        with tf.GradientTape() as tape:
            tape.watch(q)
            loss = tf.reduce_sum(keras.ops.dot_product_attention(q, q, q, flash_attention=True))
        return tape.gradient(loss, q)

    graph = tf.function(in_step(compute), autograph=False).get_concrete_function(q).graph
    bodies = [each for each in graphs_of(graph) if "while_body" in each.name]
    operations = [op for body in bodies for op in body.get_operations()]
    whole = {op.type for op in operations for out in op.outputs if out.shape.rank == 5 and out.shape[0] == 10}
    assert len(bodies) == 4
    assert whole <= {"Placeholder", "Identity", "While", "StatelessWhile"}


LAYERS = keras.layers


def make(flash, kind=unisono.Model):
    """Two kinds of layers, causal, across and with a mask."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((10, 6), dtype="float64")
    options = {"flash_attention": flash, "dtype": "float64"}
    x = LAYERS.MultiHeadAttention(2, 4, **options)(inputs, inputs, use_causal_mask=True)
    x = x + LAYERS.GroupQueryAttention(4, 4, 2, **options)(inputs, x)
    x = LAYERS.Masking(dtype="float64")(x)
    x = LAYERS.MultiHeadAttention(2, 4, **options)(x, x, use_causal_mask=True)
    return kind(inputs, LAYERS.Dense(1, dtype="float64")(x))


X, Y = R.normal(size=(7, 10, 6)), R.normal(size=(7, 10, 1))


def trained(flash, strategy=None, kind=unisono.Model, **options):
    """Weights, losses and outputs of a short fit."""
    with strategy.scope() if strategy is not None else tf.device(None):
        model = make(flash, kind)
        model.compile(keras.optimizers.SGD(0.01), "mse", **options)
    losses = model.fit(X, Y, batch_size=7, epochs=2, verbose=2).history["loss"]
    weights = [w for w in model.get_weights() if w.ndim > 1]  # the bias of a key has no effect
    return [*weights, losses, model.evaluate(X, Y, verbose=0), model.predict(X, verbose=0)]


@pytest.fixture(scope="module")
def expected():
    """What plain Keras trains."""
    return trained(None, kind=keras.Model, jit_compile=False)


@pytest.mark.short("graph")
@pytest.mark.parametrize("way", ["graph", "eager", "two replicas", "weights on two replicas", "pipeline"])
def test_fit_with_blocks_equals_keras(way, expected, monkeypatch, capsys):
    made = []
    attend = keras_attention.attend
    monkeypatch.setattr(keras_attention, "attend", lambda *args: made.append(args) or attend(*args))
    strategy, devices = None, ["CPU:0", "CPU:1"]
    if way == "pipeline":
        strategy = unisono.distribute.Pipeline(devices, micro_batches=2)
    elif way.endswith("replicas"):
        strategy = tf.distribute.MirroredStrategy(devices)
    if way.startswith("weights"):
        strategy = unisono.distribute.sharded(strategy, level="weights")
    options = {"run_eagerly": True} if way == "eager" else {"jit_compile": False}
    found = trained(True, strategy, **options)
    for one, other in itertools.zip_longest(found, expected):
        assert_close(
            one, other, FLOAT64 if isinstance(one, np.ndarray) else FLOAT32, way
        )  # a loss is float32
    assert len(made) >= 9, "three layers in fit, evaluate and predict"
    assert capsys.readouterr().out.count("attention in blocks") == 1, "of two epochs"


def test_first_line_says_on_a_gpu_why_attention_is_plain(monkeypatch, capsys):
    trained(None, run_eagerly=True)
    assert "attention" not in capsys.readouterr().out, "a few tokens on a CPU"
    monkeypatch.setattr(keras_attention, "computes_on_gpu", lambda: True)
    trained(None, run_eagerly=True)
    assert capsys.readouterr().out.count("plain attention (blocks are not measured on GPUs yet") == 1


def test_true_that_cannot_be_met_is_an_error_that_names_what_is_missing():
    q = draw(2, 8, 2, 4)
    call = in_step(lambda bias: keras.ops.dot_product_attention(q, q, q, bias=bias, flash_attention=True))
    with pytest.raises(ValueError, match="`flash_attention=True` cannot be met: a bias is added"):
        call(draw(8, 8))
    keras.config.disable_flash_attention()
    try:
        with pytest.raises(ValueError, match="disable_flash_attention"):
            call(None)
    finally:
        keras.config.enable_flash_attention()


@pytest.mark.long
def test_export_contains_no_operation_of_ours(tmp_path):
    model = make(True)
    model.export(str(tmp_path), verbose=False)
    served = tf.saved_model.load(str(tmp_path))
    assert_close(served.serve(X), make(None)(X), FLOAT64, "served")
    assert b"Attention_" not in (tmp_path / "saved_model.pb").read_bytes()
