"""Finders of a learning rate and a batch size: they call `fit` with a callback, then restore all state."""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from ..compat.keras_private.layers import layers_of
from ..compat.tensorflow_private.strategies import devices_of
from ..distribute.arguments import number, show, whole_number
from ..distribute.hardware.device_memory import PeakMemory, in_words
from ..distribute.mesh import mesh_of
from ..distribute.workers.agreement import exchange
from .compilation import runner_of
from .inputs.sources.derived_inputs import copy_input
from .inputs.sources.make_source import kind_of
from .run.evaluation import restore_generators, restore_state
from .run.fit_inputs import FitArguments, sources


class LearningRates(NamedTuple):
    """The result of `find_learning_rate`: the rate of each step, the loss before its update, and a rate to train with."""

    suggestion: float | None  # the rate at which the loss fell fastest; None where it never fell
    rates: list[float]
    losses: list[float]


def find_learning_rate(
    model: Any, x: Any, y: Any = None, sample_weight: Any = None, *, batch_size: int | None = None,
    lowest: float = 1e-7, highest: float = 1.0, steps: int = 100,
) -> LearningRates:  # fmt: skip
    """Train a few steps with a growing learning rate, and find the rate at which the loss falls fastest.

        rate(i) = lowest * (highest / lowest) ** (i / (steps - 1))

    The search ends early when the loss is four times the smallest one, or not finite. All state, random generators included,
    is restored bit for bit, so a later `fit` trains the same with and without it. `model` needs all of its variables, and a
    number as learning rate; `x` cannot be a generator, as it is read again if it is short. `steps` is at least 20.

    Source: Smith 2017, "Cyclical Learning Rates for Training Neural Networks", section 3.3.

    Examples:
        >>> found = unisono.find_learning_rate(model, x, y)
        >>> model.optimizer.learning_rate = found.suggestion
    """
    steps = whole_number("steps", steps, least=20)
    number("lowest", lowest, above=0)
    number("highest", highest, above=lowest)
    rates, losses, smooth = lowest * (highest / lowest) ** (np.arange(steps) / (steps - 1)), [], []

    def begin(batch: int, logs: Any = None) -> None:
        model.optimizer.learning_rate = rates[len(losses)]
        model.reset_metrics()  # so that the loss is that of one step

    def end(batch: int, logs: dict[str, float]) -> None:
        losses.append(float(logs["loss"]))
        smooth.append(np.average(losses, weights=0.9 ** np.arange(len(losses))[::-1]))
        diverged = len(losses) > 11 and smooth[-1] > 4 * abs(min(smooth))
        model.stop_training = diverged or not math.isfinite(smooth[-1]) or len(losses) == steps

    with _trials(model, "find_learning_rate", (x, y, sample_weight), batch_size, steps) as fit:
        fit(batch_size, keras.callbacks.LambdaCallback(on_train_batch_begin=begin, on_train_batch_end=end))
    # Without the noisy beginning and the diverged end.
    slopes = np.gradient(smooth[10:-1]) if len(smooth) > 13 else [0.0]
    steepest = int(np.argmin(slopes))
    suggestion = float(rates[10 + steepest]) if slopes[steepest] < 0 else None
    return LearningRates(suggestion, rates[: len(losses)].tolist(), losses)


def find_batch_size(
    model: Any, x: Any, y: Any = None, sample_weight: Any = None, *, memory: float | None = None
) -> int:
    """Measure the memory of two training steps with more and more samples, and find the largest batch that fits.

    A size is tried only if the smaller ones predict that it fits, and all state is restored. Pass arrays. `memory` is what
    each device may use, in bytes: by default nine tenths of the smallest one's. CPUs count as one device, the process. The
    result is a multiple of the number of replicas, or all samples.

    Examples:
        >>> unisono.find_batch_size(model, x, y, memory=64e9)  # 64 samples: all fit
        64
    """
    number("memory", memory, above=0, optional=True)
    if (kind := kind_of(x)) != "array":
        raise ValueError(f"`x` of `find_batch_size` must be arrays: a {kind} already has batches.")
    with _trials(model, "find_batch_size", (x, y, sample_weight), 4, 2) as fit:
        strategy = model.distribute_strategy
        peak = PeakMemory([each if ":" in each else tf.zeros(()).device for each in devices_of(strategy)])
        limit = memory or 0.9 * min(row[0] for row in exchange([peak.limit()], strategy))

        def bytes_of(size: int) -> float:
            steps = iter((False, True))  # in the second, optimizer state and gradients exist together
            end = lambda batch, logs: setattr(model, "stop_training", next(steps))  # noqa: E731
            peak.reset()
            with contextlib.suppress(tf.errors.ResourceExhaustedError):
                fit(size, keras.callbacks.LambdaCallback(on_train_batch_end=end))
                return max(row[0] for row in exchange([peak.most()], strategy))
            return math.inf

        replicas = mesh_of(strategy).shape[0]
        return _largest_that_fits(bytes_of, limit, len(keras.tree.flatten(x)[0]), replicas)


def _largest_that_fits(bytes_of: Callable[[int], float], limit: float, samples: int, multiple: int) -> int:
    fits, used, step, too_many = 0, 0.0, 4 * multiple, samples + 1
    while step and fits < samples:
        size = min(samples, fits + step)
        needed, first = bytes_of(size), not fits
        if needed > limit and first:
            raise ValueError(
                f"{size} samples need {in_words(needed)}, more than `memory` ({in_words(limit)})."
            )
        if needed > limit:
            too_many, step = size, (size - fits) // 2 // multiple * multiple
            continue
        each = max(0.0, needed - used) / (size - fits)  # first an upper bound: it contains the fixed part
        fits, used = size, needed
        step = int(min(fits, (limit - used) / each if each else fits, too_many - 1 - fits))
        step = step if fits + step >= samples else max(step // multiple, first) * multiple
    return fits


@contextlib.contextmanager
def _trials(
    model: Any, name: str, data: Any, batch_size: int | None, steps: int
) -> Iterator[Callable[..., Any]]:
    """Let `fit(batch_size, callback)` train up to `steps` steps in the block, and restore all state afterwards."""
    if not hasattr(model, "fit_state") or not all(layer.built for layer in layers_of(model)):
        raise ValueError(
            f"`model` of `{name}` must be a Unisono model (see `unisono.adopt`) with all of its variables: start it with "
            f"a keras.Input, or call it once on a batch. Received: {show(model)}"
        )
    (x, y, sample_weight), copy = data, copy_input(data[0], f"`{name}`")
    endless = getattr(copy, "num_batches", getattr(copy, "cardinality", int)()) in (None, -1)
    more: Any = {"steps_per_epoch" if endless else "epochs": steps}
    model._ready("fit")
    with restore_generators(model, data):
        source, _ = sources(
            model, FitArguments(model, copy, y, batch_size, sample_weight=sample_weight, **more)
        )
        with contextlib.closing(source):
            runner_of(model).build(model, source.spec, source.batch_size)
        with restore_state(model, data):
            more |= {"sample_weight": sample_weight, "verbose": 0}
            yield lambda size, each: model.fit(copy_input(x, ""), y, size, callbacks=[each], **more)
