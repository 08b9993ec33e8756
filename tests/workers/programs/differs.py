"""Worker 1 calls fit with something else than worker 0, and each says what it was told."""

import sys

import keras
import numpy as np

import unisono
from unisono.distribute import auto_strategy, worker_index

strategy = auto_strategy()
with strategy.scope():
    model = unisono.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
rows = 20 + worker_index()


def batches(count):
    for _ in range(count):
        yield np.ones((4, 2), "float32"), np.ones((4, 1), "float32")


def attempt(name, *arguments, **options):
    try:
        model.fit(*arguments, verbose=0, shuffle=False, **options)
    except (ValueError, TimeoutError) as error:
        print(f"{name}: {type(error).__name__}: {error}", flush=True)
    else:
        print(f"{name}: went through", flush=True)


attempt("rows", np.ones((rows, 2), "float32"), np.ones((rows, 1), "float32"), batch_size=32)
attempt("epochs", np.ones((8, 2), "float32"), np.ones((8, 1), "float32"), epochs=1 + worker_index())
attempt("generator", batches(6 - worker_index()))


def other_model(name, hidden, **options):
    try:
        with strategy.scope():
            other = unisono.Sequential([keras.Input((2,)), *hidden, keras.layers.Dense(1)])
            other.compile(unisono.optimizers.SGD(0.1, **options), "mse")
        other.fit(np.ones((8, 2), "float32"), np.ones((8, 1), "float32"), verbose=0)
    except ValueError as error:
        print(f"{name}: {type(error).__name__}: {error}", flush=True)


me = worker_index()
other_model("width", [keras.layers.Dense(3 + me)])
other_model("activation", [keras.layers.Dense(3, ["relu", "tanh"][me])])
other_model("clipping", [], clipnorm=1.0 + me)
attempt("same", np.ones((8, 2), "float32"), np.ones((8, 1), "float32"))
assert sys.argv[1]
