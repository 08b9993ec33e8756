"""Which library is this sentence from? A small text classifier on two replicas, with masks and an uneven batch.

The sentences come from the docstrings of NumPy and Keras. Padding is masked, so each sentence has a different number of
valid words. The mean over two replicas is still exact.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import unisono

MODULES = {
    "numpy": ("numpy", "numpy.linalg", "numpy.random", "numpy.fft", "numpy.ma"),
    "keras": ("keras", "keras.layers", "keras.ops", "keras.losses", "keras.callbacks", "keras.optimizers"),
}


def load_sentences() -> tuple[list[str], np.ndarray]:
    """Sentences of four words and more, and 0 for NumPy's, 1 for Keras'; the names of the libraries are taken out."""
    sentences, labels = [], []
    for label, modules in enumerate(MODULES.values()):
        found: set[str] = set()
        for name in modules:
            module = importlib.import_module(name)
            for member in vars(module).values():
                text = inspect.getdoc(member) or "" if callable(member) else ""
                for sentence in re.split(r"(?<=\.)\s|\n\s*\n", text):
                    if re.fullmatch(r"[A-Z][^>`_=\[\]]*\.", sentence, re.DOTALL) and sentence.count(" ") >= 3:
                        found.add(re.sub(r"(?i)numpy|keras|tensorflow", "it", " ".join(sentence.split())))
        sentences += sorted(found)
        labels += [label] * len(found)
    order = np.random.default_rng(0).permutation(len(labels))
    return [sentences[i] for i in order], np.array(labels, "int32")[order]


def main() -> None:
    keras.utils.set_random_seed(1)
    unisono.distribute.simulate_devices(2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    sentences, labels = load_sentences()
    test_rows = len(labels) // 5
    words = keras.layers.TextVectorization(max_tokens=4000, output_sequence_length=32)
    words.adapt(sentences[test_rows:])
    numbers = words(tf.constant(sentences)).numpy()

    with strategy.scope():
        model = unisono.Sequential(
            [
                keras.Input((32,), dtype="int64"),
                keras.layers.Embedding(4000, 32, mask_zero=True),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(16, activation="relu"),
                keras.layers.Dense(1),
            ]
        )
        model.compile(
            unisono.optimizers.Adam(5e-3),
            keras.losses.BinaryCrossentropy(from_logits=True),
            metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)],
        )
    counts = np.bincount(labels[test_rows:])
    model.fit(
        numbers[test_rows:],
        labels[test_rows:, None],
        batch_size=51,
        epochs=6,
        class_weight={label: len(labels) / 2 / count for label, count in enumerate(counts)},
    )
    _, accuracy = model.evaluate(numbers[:test_rows], labels[:test_rows, None], verbose=0)
    print(f"\n{accuracy:.1%} of {test_rows} unseen sentences are classified correctly")
    for sentence, answer in zip(sentences[:5], model.predict(numbers[:5], verbose=0)[:, 0], strict=True):
        print(f"{list(MODULES)[int(answer > 0)]:6} {sentence[:90]}")


if __name__ == "__main__":
    main()
