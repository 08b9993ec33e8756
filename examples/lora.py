"""Fine-tuning a language model of KerasHub with LoRA: the pretrained weights are frozen, and small matrices are trained.

Needs KerasHub (`pip install keras-hub`). Nothing is downloaded: a small GPT-2 with random weights first learns to count,
which stands for the pretraining; then LoRA teaches it to count in threes. For a real one take
`keras_hub.models.GPT2Backbone.from_preset("gpt2_base_en")`, which needs a connection once, and leave the first `fit` out.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import unisono

try:
    import keras_hub
except ImportError:
    raise SystemExit("this example needs KerasHub: pip install keras-hub") from None

VOCABULARY, LENGTH = 64, 16


def make_texts(rows: int, by: int) -> dict[str, Any]:
    """What `fit` takes: sequences of different lengths that count in steps of `by`. Padding counts nowhere."""
    random = np.random.default_rng(by)
    tokens = (random.integers(0, VOCABULARY, (rows, 1)) + by * np.arange(LENGTH + 1)) % VOCABULARY
    mask = np.arange(LENGTH + 1) < random.integers(4, LENGTH + 2, (rows, 1))
    return {
        "x": {"token_ids": tokens[:, :-1], "padding_mask": mask[:, :-1]},
        "y": tokens[:, 1:],
        "sample_weight": mask[:, 1:].astype("float32"),
    }


def compiled(model: keras.Model, learning_rate: float) -> keras.Model:
    model.compile(
        unisono.optimizers.Adam(learning_rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],
    )
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--rows", type=int, default=960)
    options = parser.parse_args()
    keras.utils.set_random_seed(1)
    unisono.distribute.simulate_devices(2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    how = {"batch_size": 50, "epochs": options.epochs, "verbose": 2}
    with strategy.scope():
        backbone = keras_hub.models.GPT2Backbone(
            vocabulary_size=VOCABULARY,
            num_layers=2,
            num_heads=4,
            hidden_dim=64,
            intermediate_dim=128,
            max_sequence_length=LENGTH,
        )
        model = compiled(unisono.adopt(keras_hub.models.GPT2CausalLM(backbone, preprocessor=None)), 3e-3)
    model.fit(**make_texts(options.rows, by=1), **how)

    with strategy.scope():
        backbone.enable_lora(rank=4)
        compiled(model, 2e-2)
    learning, kept = model.trainable_weights, model.non_trainable_weights
    print(f"\nLoRA: {count(learning):,} of {count(learning + kept):,} weights learn")
    before = [weight.numpy() for weight in kept]
    history = model.fit(**make_texts(options.rows, by=3), **how)
    same = all(np.array_equal(old, weight.numpy()) for old, weight in zip(before, kept, strict=True))
    print(
        f"\naccuracy {history.history['accuracy'][-1]:.1%}; the pretrained weights are {'unchanged' if same else 'CHANGED'}"
    )


def count(weights: list[Any]) -> int:
    return sum(int(np.prod(weight.shape)) for weight in weights)


if __name__ == "__main__":
    main()
