"""One `fit` and `predict` step of a `keras.applications` model compared with plain Keras: `applications.py NAME SIZE`."""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

import unisono

TOLERANCE = 1e-3  # float32 rounding through a hundred layers, relative to the norm of the array


def smooth(model):
    """Removes dropout, and batch statistics over few samples, which amplify rounding errors."""
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.trainable = False
        if hasattr(layer, "rate"):
            layer.rate = 0.0
        if hasattr(layer, "drop_path_rate"):
            layer.drop_path_rate = 0.0


def steps(adopt, name, size):
    """The predictions before a step, each weight's change in it, and its loss."""
    keras.utils.set_random_seed(1)
    model = getattr(keras.applications, name)(weights=None, classes=3, input_shape=(size, size, 3))
    if adopt:
        model = unisono.adopt(model)
    smooth(model)
    model.compile(keras.optimizers.SGD(1e-2), "sparse_categorical_crossentropy", jit_compile=False)
    x = np.random.default_rng(0).uniform(0, 255, size=(4, size, size, 3)).astype("float32")
    outputs = model.predict(x, verbose=0)
    before = model.get_weights()
    keras.utils.set_random_seed(2)
    loss = model.fit(x, np.array([0, 1, 2, 0]), batch_size=4, verbose=0).history["loss"]
    changes = np.concatenate([(a - b).ravel() for a, b in zip(model.get_weights(), before)])
    return outputs, changes, loss


def differs(found, right):
    """The distance between two arrays, relative to the expected one."""
    found, right = np.asarray(found, "float64"), np.asarray(right, "float64")
    return float(np.linalg.norm(found - right) / max(np.linalg.norm(right), 1e-30))


if __name__ == "__main__":
    application, pixels = sys.argv[1], int(sys.argv[2])
    pairs = zip(steps(True, application, pixels), steps(False, application, pixels))
    distances = [differs(*pair) for pair in pairs]
    print(application, distances)
    assert max(distances) <= TOLERANCE, distances
