"""Fine-tuning a language model of KerasHub with LoRA: `from_preset`, a frozen body, small trained matrices, `generate`.

Needs KerasHub (`pip install keras-hub`) and no network. Where no preset is named, the program makes one: a small GPT-2 that
has learned the alphabet, saved with `save_to_preset`. LoRA then teaches it to take every third letter. Two lines make it
real; they are marked with "real:", and `--preset gpt2_base_en` does the first one.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import string
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import unisono

try:
    import keras_hub
except ImportError:
    raise SystemExit("this example needs KerasHub: pip install keras-hub") from None

LENGTH = 16


def make_texts(count: int, by: int) -> list[str]:
    """Letters in alphabetical order, each `by` after the one before it."""
    random = np.random.default_rng(by)
    begins, lengths = random.integers(0, 26, count), random.integers(8, LENGTH, count)
    return [
        "".join(string.ascii_lowercase[(begin + by * n) % 26] for n in range(length))
        for begin, length in zip(begins, lengths)
    ]


def make_preset(folder: pathlib.Path, **how: Any) -> str:
    """Train a small GPT-2 on the alphabet, and save it as KerasHub saves its own models."""
    words = ["#", *string.ascii_lowercase, "##", "<|endoftext|>"]
    tokenizer = keras_hub.tokenizers.GPT2Tokenizer({word: n for n, word in enumerate(words)}, merges=["# #"])
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=len(words),
        num_layers=2,
        num_heads=4,
        hidden_dim=64,
        intermediate_dim=128,
        max_sequence_length=LENGTH,
    )
    preprocessor = keras_hub.models.GPT2CausalLMPreprocessor(tokenizer, sequence_length=LENGTH)
    model = unisono.adopt(keras_hub.models.GPT2CausalLM(backbone, preprocessor))
    compile_model(model, 3e-3)
    model.fit(make_texts(960, by=1), **how)
    model.save_to_preset(folder)
    return str(folder)


def compile_model(model: keras.Model, learning_rate: float) -> None:
    model.compile(
        unisono.optimizers.Adam(learning_rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],
        sampler="greedy",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", help="of KerasHub; default: one that this program makes")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--texts", type=int, default=960)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("demo/lora"))
    options = parser.parse_args()
    keras.utils.set_random_seed(1)
    unisono.distribute.simulate_devices(2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    how = {"batch_size": 50, "epochs": options.epochs, "verbose": 2}
    # real: preset = "gpt2_base_en"
    preset = options.preset or make_preset(options.folder / "preset", **how)
    # real: texts = pathlib.Path("texts.txt").read_text().splitlines()
    texts = make_texts(options.texts, by=3)

    with strategy.scope():
        model = unisono.adopt(keras_hub.models.CausalLM.from_preset(preset))
        model.backbone.enable_lora(rank=4)
        compile_model(model, 2e-2)
    learning, kept = model.trainable_weights, model.non_trainable_weights
    print(f"\nLoRA: {count(learning):,} of {count(learning + kept):,} weights learn")
    prompt = texts[0][:3]
    print(f"before: {prompt} -> {model.generate(prompt, max_length=LENGTH)}")
    before = [weight.numpy() for weight in kept]
    model.fit(texts, **how)
    same = all(np.array_equal(old, weight.numpy()) for old, weight in zip(before, kept, strict=True))
    print(f"\nafter:  {prompt} -> {model.generate(prompt, max_length=LENGTH)}")
    print(f"the pretrained weights are {'unchanged' if same else 'CHANGED'}")
    options.folder.mkdir(parents=True, exist_ok=True)
    model.backbone.save_lora_weights(str(options.folder / "letters.lora.h5"))


def count(weights: list[Any]) -> int:
    return sum(int(np.prod(weight.shape)) for weight in weights)


if __name__ == "__main__":
    main()
