"""Trial steps of training without side effects, for finders."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from ...compat.keras_private.layers import layers_of
from ...compat.keras_private.training import check_compiled
from ...distribute.arguments import shown
from ..compilation import runner_of
from ..inputs.sources.derived_inputs import copied_input
from ..run import fit_loop
from ..run.fit_inputs import FitArguments, sources
from ..run.untouched import untouched, untouched_generators


@contextlib.contextmanager
def trial(
    model: Any, name: str, x: Any, y: Any, sample_weight: Any, batch_size: int | None, steps: int
) -> Iterator[Callable[..., None]]:
    """A block in which `train(callback, batch_size)` trains up to `steps` steps; afterwards all state is restored.

    Data that has fewer batches is read again. `name` is that of the finder, for messages, such as the `ValueError` for an
    input that reading would consume.
    """
    copy = copied_input(x, f"`{name}`")
    endless = isinstance(copy, tf.data.Dataset) and copy.cardinality() == tf.data.INFINITE_CARDINALITY
    endless = endless or getattr(copy, "num_batches", 1) is None
    model._ready("fit")
    runner = runner_of(model)

    def arguments(callbacks: list[keras.callbacks.Callback], batch_size: int | None) -> FitArguments:
        return FitArguments(
            copied_input(x, ""),
            y,
            sample_weight,
            batch_size,
            epochs=1 if endless else steps,
            verbose=0,
            callbacks=callbacks,
            steps_per_epoch=steps if endless else None,
        )

    def train(callback: keras.callbacks.Callback, batch_size: int | None = batch_size) -> None:
        fit_loop.fit(model, arguments([callback], batch_size), runner)

    with untouched_generators(model, (x, y, sample_weight)):
        source, _ = sources(model, arguments([], batch_size))
        with contextlib.closing(source):
            runner.build(model, source.spec, source.batch_size)
        with untouched(model, (x, y, sample_weight)):
            yield train


def check_model(model: Any, name: str) -> None:
    """Rejects a model that cannot be trained yet, and one whose first variables the trial would create."""
    if not hasattr(model, "fit_state"):
        raise TypeError(
            f"`model` of `{name}` must be a Unisono model: call `unisono.adopt(model)` first. Received: {shown(model)}"
        )
    check_compiled(model, name)
    if not all(layer.built for layer in layers_of(model)):
        raise ValueError(
            f"`{name}` restores every variable, but the model {model.name!r} has not created its variables: begin it with a "
            "keras.Input, or call it once on a batch."
        )
