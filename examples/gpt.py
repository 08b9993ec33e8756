"""A GPT on text: a custom `train_step`, mixed precision, and an interrupted run that resumes bit-for-bit.

The text is that of the docstrings of Keras' layers, which are installed anyway; the model reads and writes characters. The
program trains twice, once without and once with an interruption in mid-epoch: the weights are bitwise identical.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import os
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import unisono

CONTEXT, WIDTH, HEADS, BLOCKS, BATCH = 64, 64, 4, 2, 32


class GPT(unisono.Model):
    """A language model whose step is written out: the loss is scaled, so that float16 gradients do not vanish."""

    def train_step(self, data):
        characters, following = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(characters, following, self(characters, training=True))
            scaled = self.optimizer.scale_loss(loss)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(scaled, weights), weights, strict=True))
        return {"loss": loss}


def load_text() -> str:
    members = (getattr(keras.layers, name) for name in sorted(dir(keras.layers)))
    text = "\n".join(inspect.getdoc(member) or "" for member in members if inspect.isclass(member))
    return text.encode("ascii", "ignore").decode()


def block(x):
    """Attention to the characters before, then two dense layers, each added to what came in."""
    seen = keras.layers.LayerNormalization()(x)
    x += keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(seen, seen, use_causal_mask=True)
    hidden = keras.layers.Dense(4 * WIDTH, activation="gelu")(keras.layers.LayerNormalization()(x))
    return x + keras.layers.Dropout(0.1)(keras.layers.Dense(WIDTH)(hidden))


def make_model(characters: int, policy: str) -> GPT:
    keras.backend.clear_session()  # as in a new process: names of layers begin again, in float32
    unisono.mixed_precision.set_global_policy(policy)
    keras.utils.set_random_seed(1)
    with unisono.distribute.auto_strategy().scope():
        inputs = keras.Input((CONTEXT,), dtype="int32")
        places = keras.layers.Embedding(CONTEXT, WIDTH)(keras.ops.arange(CONTEXT)[None])
        x = keras.layers.Embedding(characters, WIDTH)(inputs) + places
        for _ in range(BLOCKS):
            x = block(x)
        logits = keras.layers.Dense(characters, dtype="float32")(keras.layers.LayerNormalization()(x))
        model = GPT(inputs, logits)
        rate = keras.optimizers.schedules.CosineDecay(0.0, 1000, warmup_target=2e-3, warmup_steps=20)
        model.compile(
            unisono.optimizers.AdamW(rate, global_clipnorm=1.0),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    return model


class StopAt(keras.callbacks.Callback):
    """Stands for a machine that is switched off after a number of steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.left = steps

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            raise InterruptedError("the machine is switched off")


def write(model: GPT, start: str, alphabet: str, count: int) -> str:
    """Continues a text by the most probable characters."""
    text = start
    for _ in range(count):
        seen = [alphabet.index(c) for c in text[-CONTEXT:]]
        logits = model.predict(np.array([seen + [0] * (CONTEXT - len(seen))]), verbose=0)
        text += alphabet[int(logits[0, len(seen) - 1].argmax())]
    return text


def train_in(folder: str, model: GPT, data: dict, steps: int) -> None:
    """Trains as a script does that is killed and started again, and prints what tells whether two models are equal."""
    backup = unisono.callbacks.BackupAndRestore(folder, save_freq=max(1, steps // 3))
    model.fit(**data, callbacks=[backup])
    digest = hashlib.sha256(b"".join(weights.tobytes() for weights in model.get_weights()))
    print(f"{model.count_params()} weights, sha256 {digest.hexdigest()[:24]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150, help="steps of each of the two epochs")
    parser.add_argument(
        "--folder", help="train once with backups there: kill the program, and start it again"
    )
    parser.add_argument("--policy", default="mixed_float16", help="the precision; on a CPU float32 is faster")
    steps, folder, policy = vars(parser.parse_args()).values()
    text = load_text()
    alphabet = "".join(sorted(set(text)))
    codes = np.array([alphabet.index(c) for c in text], "int32")
    rows = np.arange(steps * BATCH)[:, None] * 7 % (len(codes) - CONTEXT) + np.arange(CONTEXT)
    data = {"x": codes[rows], "y": codes[rows + 1], "batch_size": BATCH, "epochs": 2}
    if folder:
        train_in(folder, make_model(len(alphabet), policy), data, steps)
        return

    whole = make_model(len(alphabet), policy)
    whole.fit(**data, verbose=2)

    with tempfile.TemporaryDirectory() as folder:
        backup = unisono.callbacks.BackupAndRestore(folder, save_freq=max(1, steps // 3))
        try:
            make_model(len(alphabet), policy).fit(
                **data, verbose=0, callbacks=[backup, StopAt(steps + steps // 2)]
            )
        except InterruptedError as error:
            print(
                f"\n{error} after {steps + steps // 2} of {2 * steps} steps; the same program starts again:"
            )
        resumed = make_model(len(alphabet), policy)
        backup = unisono.callbacks.BackupAndRestore(folder, save_freq=max(1, steps // 3))
        resumed.fit(**data, verbose=2, callbacks=[backup])
    pairs = zip(whole.get_weights(), resumed.get_weights(), strict=True)
    equal = all(np.array_equal(one, other) for one, other in pairs)
    print(f"\nthe weights of both runs are {'bitwise identical' if equal else 'DIFFERENT'}")
    print(write(resumed, "Example", alphabet, min(steps, 60)))


if __name__ == "__main__":
    main()
