"""A decoder whose attention is in blocks of four tokens, and how it is trained, for tests."""

from __future__ import annotations

import dataclasses
import functools

import keras
import numpy as np
import pytest

import unisono
from unisono.distribute.attention import blocks, choice, keras_attention

L = keras.layers
R = np.random.default_rng(5)
SAMPLES, TOKENS, BATCH = 9, 10, 4  # the last batch has one sample
X = R.integers(0, 12, (SAMPLES, TOKENS)).astype("int32")
Y = R.integers(0, 12, (SAMPLES, TOKENS)).astype("int32")
DATA = X, Y


@pytest.fixture(name="in_blocks")
def compute_in_blocks(monkeypatch):
    """Texts of any length are computed in blocks of four tokens; returns the calls that were."""
    calls, attend = [], keras_attention.attend
    monkeypatch.setattr(choice, "FEWEST_TOKENS", 1)
    with_mask = lambda problem: choice.choose(dataclasses.replace(problem, causal=True))  # noqa: E731
    monkeypatch.setattr(keras_attention, "choose", with_mask)
    monkeypatch.setattr(blocks, "SIZE", 4)
    monkeypatch.setattr(keras_attention, "attend", lambda *args: calls.append(args) or attend(*args))
    return calls


def decoder(kind=unisono.Model, layer=None, **options):
    """Two kinds of attention, and a number for each word."""
    keras.utils.set_random_seed(3)
    words = keras.Input((TOKENS,), dtype="int32")
    x = L.Embedding(12, 8, name="embedding")(words)
    attention = L.MultiHeadAttention(4, 4, name="attention", **(layer or {}))
    x = x + attention(x, x, use_causal_mask=True)
    x = L.LayerNormalization()(x)
    x = x + L.GroupQueryAttention(4, 4, 2, name="grouped")(x, x, use_causal_mask=True)
    model = kind(words, L.Dense(12, name="head")(x))
    return compiled(model, **options)


def compiled(model, optimizer=None, **options):
    """With momentum, and a loss of numbers."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made = optimizer() if optimizer else keras.optimizers.SGD(0.1, momentum=0.5)
    model.compile(made, loss, **{"jit_compile": False, **options})
    return model


def weights_of(model):
    """What a training has changed; not the bias of a key, which has no effect and moves by rounding alone."""
    found = (v for v in model.variables if v.dtype.startswith("float") and not v.path.endswith("key/bias"))
    return [v.numpy() for v in found]


def fitted(model, *data, **options):
    """Losses and weights after an epoch over `data`."""
    data = data or DATA
    options = {"shuffle": False, "verbose": 0, **options}
    if isinstance(data[0], np.ndarray):
        options["batch_size"] = BATCH
    return [model.fit(*data, **options).history["loss"], weights_of(model)]


@functools.cache
def of_keras():
    """What Keras trains."""
    return fitted(decoder(keras.Model, run_eagerly=True))
