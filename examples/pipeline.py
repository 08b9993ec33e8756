"""A model cut into four stages, each on its own device, which work on one micro-batch after another.

The same model trains on one device and in the pipeline; weights agree to rounding. The drawing of the step shows what each
stage does when (F: forward, B: backward), and how long it idles.
"""

from __future__ import annotations

import argparse
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import sklearn.datasets

import unisono


def make_model() -> unisono.Model:
    """Blocks with connections around them: the cut may go through such a connection."""
    keras.utils.set_random_seed(1)
    x = inputs = keras.Input((64,))
    for block in range(6):
        y = keras.layers.LayerNormalization(name=f"norm_{block}")(x)
        y = keras.layers.Dense(128, activation="gelu", name=f"widen_{block}")(y)
        y = keras.layers.Dense(64, name=f"narrow_{block}")(y)
        x = keras.layers.Add(name=f"add_{block}")([x, y])
    model = unisono.Model(inputs, keras.layers.Dense(10, name="head")(x))
    model.compile(
        unisono.optimizers.Adam(1e-3, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, help="steps of an epoch; default: all samples")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("demo"))
    options = parser.parse_args()
    devices = unisono.distribute.simulate_devices(4)  # with GPUs: ["GPU:0", "GPU:1", "GPU:2", "GPU:3"]
    x, y = sklearn.datasets.load_digits(return_X_y=True)
    x = (x / 16).astype("float32")
    # The last of 15 batches has five samples, fewer than there are micro-batches.
    how = {"batch_size": 128, "epochs": options.epochs, "steps_per_epoch": options.steps, "verbose": 2}

    print("one device")
    one = make_model()
    one.fit(x, y, **how)

    print("\na pipeline of four stages")
    pipeline = unisono.distribute.Pipeline(devices, micro_batches=8, schedule="1f1b")
    with pipeline.scope():
        model = make_model()
    model.fit(x, y, **how)
    print(pipeline.summary())
    options.folder.mkdir(parents=True, exist_ok=True)
    pipeline.timeline().save(options.folder / "pipeline.svg")

    pairs = zip(one.get_weights(), model.get_weights(), strict=True)
    print(f"largest difference of a weight: {max(float(np.abs(a - b).max()) for a, b in pairs):.1e}")
    print(f"the step as a drawing: {options.folder / 'pipeline.svg'}")


if __name__ == "__main__":
    main()
