"""mixed_float16 on any strategy: overflow on one worker, on the other, and finally in every step."""

import sys
import warnings

import keras
import numpy as np

import unisono
from unisono.distribute import auto_strategy, worker_index

ROWS, BATCH = 22, 8  # the last batch has 6 samples
BAD = (7, 8)  # the last sample of the first batch (worker 1) and the first of the second (worker 0)


def run(strategy):
    warnings.simplefilter("ignore", unisono.mixed_precision.SlowPrecisionWarning)
    keras.utils.set_random_seed(5)
    x = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")
    y = x[:, :2].copy()
    bad = x.copy()
    bad[list(BAD)] = 1e30
    with unisono.mixed_precision.policy_scope("mixed_float16"), strategy.scope():
        model = unisono.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="narrow")])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    history = model.fit(bad, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history
    found = {name: np.array(values) for name, values in history.items()}
    found["weights"] = np.concatenate([np.ravel(w) for w in model.get_weights()])
    try:
        model.fit(x * 1e30, y, batch_size=BATCH, epochs=20, shuffle=False, verbose=0)
    except unisono.mixed_precision.LossScaleError as error:
        found["error"] = np.array(str(error))
    found["weights after"] = np.concatenate([np.ravel(w) for w in model.get_weights()])
    return found


if __name__ == "__main__":
    folder = sys.argv[1]
    np.savez(f"{folder}/worker-{worker_index()}.npz", **run(auto_strategy()))
