"""The functions of Keras that are replaced while a fit of ours runs, each with its reason.

What stands in for a function is made by the package that knows how, and handed down with `provide`. It does what Keras does
where the thread computes no step of ours, so that plain Keras in another thread is not affected.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras.src.backend.common.variables import Variable as CommonVariable
from keras.src.backend.tensorflow import core as backend_core
from keras.src.backend.tensorflow import nn as backend_nn
from keras.src.backend.tensorflow import numpy as backend_numpy
from keras.src.backend.tensorflow import random as backend_random
from keras.src.losses import loss as loss_module
from keras.src.random.seed_generator import SeedGenerator
from keras.src.trainers.trainer import Trainer


class Replaced(NamedTuple):
    """A function of Keras: the module or class that holds it, its name there, and why it is replaced."""

    owner: Any
    name: str
    reason: str

    @property
    def key(self) -> str:
        """How `provide` names it: `Loss.__call__`, `random.uniform`."""
        return f"{self.owner.__name__.rpartition('.')[2]}.{self.name}"


REPLACED = (
    Replaced(loss_module, "reduce_weighted_values", "a loss is divided by the weights of the global batch"),
    Replaced(loss_module, "scale_loss_for_distribution", "the reduction above makes it superfluous"),
    Replaced(loss_module, "unscale_loss_for_distribution", "the reduction above makes it superfluous"),
    Replaced(
        loss_module.Loss, "__call__", "a loss that may look at the whole batch sees the rows of all replicas"
    ),
    Replaced(keras.layers.Layer, "add_loss", "an added loss is a mean or a sum over rows: replicas differ"),
    Replaced(keras.layers.Layer, "_clear_losses", "losses of a replica whose thread is waiting must stay"),
    Replaced(CommonVariable, "__int__", "TensorFlow's mirrored variables do not know it"),
    Replaced(CommonVariable, "__float__", "TensorFlow's mirrored variables do not know it"),
    Replaced(
        backend_core.Variable, "handle", "a tape knows a variable assigned in this step by what was assigned"
    ),
    Replaced(SeedGenerator, "next", "the number of the replica is mixed into the seed of a random layer"),
    Replaced(backend_random, "uniform", "random numbers are the same under XLA"),
    Replaced(backend_random, "normal", "random numbers are the same under XLA"),
    Replaced(backend_random, "dropout", "random numbers are the same under XLA"),
    Replaced(Trainer, "compile_from_config", "it must tell what the file said and what is Keras' default"),
    Replaced(backend_numpy, "take", "rows of a variable are taken where they are, on a parameter server"),
    Replaced(backend_nn, "_compute_moments_sync", "synchronized batch normalization counts no borrowed row"),
)


def provide(key: str, make: Callable[[Any], Any]) -> None:
    """Replaces a function of `REPLACED` by `make(original)`; for a property, its getter. Once only."""
    (replaced,) = (each for each in REPLACED if each.key == key)
    found = vars(replaced.owner)[replaced.name]
    original: Any = found.fget if isinstance(found, property) else found
    if hasattr(original, "__unisono_original__"):
        return
    replacement: Any = functools.wraps(original)(make(original))
    replacement.__unisono_original__ = original
    value = property(replacement) if isinstance(found, property) else replacement
    setattr(replaced.owner, replaced.name, value)
