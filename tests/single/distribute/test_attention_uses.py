"""A decoder whose attention is in blocks computes as plain Keras in every precision, with every wrapper, and when saved."""

import os
import subprocess
import sys

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf
from attention_decoder import (
    BATCH,
    L,
    X,
    Y,
    compiled,
    compute_in_blocks,  # noqa: F401  (a fixture)
    decoder,
    fitted,
    weights_of,
)
from helpers import FLOAT64, assert_close, assert_equal, scope

import unisono

pytestmark = pytest.mark.usefixtures("float64", "in_blocks")
PLAIN_KERAS = """
import sys
import keras, numpy as np, tensorflow as tf
x = np.load("x.npy")
np.save("loaded.npy", keras.saving.load_model("model.keras")(x))
served = tf.saved_model.load("served")
np.save("served.npy", served.serve(x))
assert not [name for name in sys.modules if name.startswith("unisono")]
"""


def adapted(kind):
    """Kernels of 8 bits, and low-rank weights that are trained."""
    model = decoder(kind)
    model.quantize("int8")
    attention = model.get_layer("attention")
    for each in (attention.query_dense, attention.value_dense):
        each.enable_lora(2)
    return fitted(compiled(model))


def rematerialized(kind):
    """Attention rematerialized in the backward pass."""
    with keras.RematScope("full"):
        return fitted(decoder(kind))


def accumulated(kind):
    """An update every two steps."""
    return fitted(decoder(kind, optimizer=lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)))


def enabled(kind):
    """A layer asks for it, which plain Keras does not have on TensorFlow: there it computes as ever."""
    return fitted(decoder(kind, layer={"flash_attention": True}))


def smooth(kind):
    """A second gradient: the loss contains the squares of the first one."""

    class Smooth(kind):
        def compute_loss(self, x=None, y=None, y_pred=None, *given, **options):
            with tf.GradientTape() as tape:
                h = table = self.get_layer("embedding")(x)
                tape.watch(table)
                for name in ("attention", "grouped"):
                    h = self.get_layer(name)(h, h, use_causal_mask=True)
                squares = tf.reduce_sum(h**2)
            loss = super().compute_loss(x, y, y_pred)
            return loss + tf.reduce_mean(tape.gradient(squares, table) ** 2)

    return fitted(decoder(Smooth))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
@pytest.mark.parametrize(
    "use", [adapted, rematerialized, accumulated, enabled, smooth], ids=lambda f: f.__name__
)
def test_training_that_changes_numbers_equals_keras(use, in_blocks):
    expected = use(keras.Model)
    assert not in_blocks
    assert_close(use(unisono.Model), expected, FLOAT64, use.__name__)
    assert len(in_blocks) >= 2


@pytest.mark.long
@pytest.mark.parametrize("where", ["none", "mirrored3"])
@pytest.mark.parametrize(
    ("policy", "tolerance"),
    # What the guide promises of gradients: each weight has moved by a few of them.
    [("float32", 1e-6), ("mixed_bfloat16", 5e-2), ("mixed_float16", 1e-2)],
)
def test_precisions_differ_by_rounding(policy, tolerance, where, in_blocks):
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy(policy)
    before = weights_of(decoder())
    expected = fitted(decoder(keras.Model, run_eagerly=True))
    with scope(helpers.strategy(where)):
        model = decoder()
    losses, weights = fitted(model)
    assert_close(losses, expected[0], tolerance, "losses")
    if policy != "float32":  # the weights themselves differ by less
        weights, expected[1] = (
            [one - start for one, start in zip(each, before)] for each in (weights, expected[1])
        )
    assert_close(weights, expected[1], tolerance, policy)
    assert len(in_blocks) >= 2


def test_plain_computation_can_be_chosen_for_all_layers(in_blocks):
    keras.config.disable_flash_attention()
    try:
        decoder(run_eagerly=True).train_on_batch(X, Y)
        assert not in_blocks
    finally:
        keras.config.enable_flash_attention()
    decoder(run_eagerly=True, layer={"flash_attention": False}).train_on_batch(X, Y)
    assert len(in_blocks) == 2, "a layer's False is Keras' None"


def test_texts_of_open_lengths_are_plain(in_blocks):
    words = keras.Input((None,), dtype="int32")
    x = L.Embedding(12, 8)(words)
    model = compiled(unisono.Model(words, L.Dense(12)(L.MultiHeadAttention(2, 4)(x, x))))
    lengths = tf.data.Dataset.from_generator(
        lambda: ((X[:3, :n], Y[:3, :n]) for n in (4, 7)),
        output_signature=(tf.TensorSpec([None, None], "int32"),) * 2,
    )
    model.fit(lengths, verbose=0)
    assert not in_blocks


@pytest.mark.long
@pytest.mark.process
def test_evaluate_predict_and_saved_models_equal_keras(in_blocks, tmp_path):
    model, plain = decoder(jit_compile=True), decoder(keras.Model, run_eagerly=True)
    losses = [each.evaluate(X, Y, batch_size=BATCH, verbose=0) for each in (model, plain)]
    assert_close(*losses, FLOAT64, "evaluate")
    expected = plain(X).numpy()
    assert_close(model.predict(X, batch_size=BATCH, verbose=0), expected, FLOAT64, "predict")
    calls = len(in_blocks)
    model.save(tmp_path / "model.keras")
    model.export(str(tmp_path / "served"), verbose=False)
    command = [sys.executable, "-c", PLAIN_KERAS]
    np.save(tmp_path / "x.npy", X)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert_close(np.load(tmp_path / "loaded.npy"), expected, FLOAT64, "loaded")
    assert_close(np.load(tmp_path / "served.npy"), expected, FLOAT64, "served")
    assert len(in_blocks) == calls


@pytest.mark.long
def test_resumed_run_has_the_bits_of_one_that_was_never_interrupted(tmp_path):
    def train(*callbacks):
        model = decoder()
        fitted(model, epochs=2, callbacks=list(callbacks))
        return weights_of(model)

    assert_equal(helpers.resumed(train, tmp_path, 2), train(), "resumed")


DETERMINED = """
import sys
sys.path[:0] = sys.argv[1:]
import keras, tensorflow as tf
tf.config.experimental.enable_op_determinism()
keras.config.set_floatx("float64")
import attention_decoder as uses, helpers
uses.choice.FEWEST_TOKENS, uses.blocks.SIZE = 1, 4
kinds = [{"jit_compile": xla} for xla in (False, True)]
found = [[uses.fitted(uses.decoder(**kind)) for _ in range(2)] for kind in kinds]
for one, other in found:
    helpers.assert_equal(one, other)
    helpers.assert_close(one, uses.of_keras(), helpers.FLOAT64)
print("equal")
"""


@pytest.mark.long
@pytest.mark.process
def test_determinism_gives_equal_bits_twice(tmp_path):
    command = [sys.executable, "-c", DETERMINED, os.path.dirname(helpers.__file__)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.strip().endswith("equal"), done.stderr[-2000:]
