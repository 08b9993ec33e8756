"""A model that trains with Unisono: its type, and the state of its running `fit`. The class itself is in `trainer/`."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import keras
import tensorflow as tf

from ..compat.keras_private.layers import layers_of
from ..compat.side_table import SideTable
from ..distribute.workers.cluster import num_workers


class Times:
    """A stopwatch with named laps. The loop calls `lap` after each part of its work; callbacks read the `seconds` so far.

    The parts are "input" (waiting for batches), "compute" (the compiled function, until its logs are numbers),
    "callbacks", "validation" and "other" (building, resetting metrics, the beginning of an epoch).

    >>> now = iter([0.0, 2.0, 5.0, 6.0])
    >>> times = Times(clock=lambda: next(now))
    >>> times.lap("input"); times.lap("compute"); times.lap("input")
    >>> times.seconds
    {'input': 3.0, 'compute': 3.0}
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._last = clock()
        self.seconds: dict[str, float] = {}

    def lap(self, part: str) -> None:
        """Count the time since the last lap as `part`."""
        now = self._clock()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        self._last = now


@dataclasses.dataclass
class FitState:
    """The position of one `fit`. The loop owns it and sets it as `model.fit_state` before `on_train_begin`.

    Callbacks read `epoch` and `step` in any hook; `BackupAndRestore` sets them in `on_train_begin` when it resumes.
    """

    epoch: int = 0  # the current epoch, from 0
    first_epoch: int = 0  # at which `fit` was asked to begin
    step: int = 0  # steps of this epoch that are done
    epochs: int = 1  # the epoch at which `fit` ends
    steps_per_epoch: int | None = None  # None while unknown
    source: Any = None  # the input (`trainer.inputs.Source`): `state()` and `restore(state)` are its position
    validation: Any = None  # the input of validation; None without one
    callbacks: list[Any] = dataclasses.field(default_factory=list)  # of this `fit`, History included
    step_logs: dict[str, Any] = dataclasses.field(default_factory=dict)  # of the last step that is done
    # The logs of the training steps of this epoch, for a validation that was interrupted.
    epoch_logs: dict[str, Any] = dataclasses.field(default_factory=dict)
    # Run once, after the next `on_epoch_begin`: restores what that hook would change of a resume within an epoch.
    after_epoch_begin: Callable[[], None] | None = None
    chief: bool = True  # whether this process writes files
    function: Any = None  # the model's `train_function` with which the loop runs
    times: Times = dataclasses.field(default_factory=Times)
    slow_steps: Any = (
        None  # what watches the compiled calls of this `fit` (`trainer.run.slow_steps.SlowSteps`)
    )
    warned_of_nan: bool = False  # whether a warning has named the call in which the loss became NaN
    save_and_exit: str | None = None  # why training saves and stops at the next step, on all workers
    spool: Any = None  # what uploads the files that callbacks write to a store (`callbacks.spool.Spool`)
    asked_to_exit: str | None = None  # set by a signal handler: why this process was asked to
    settles_exit: bool = False  # the loop makes `asked_to_exit` `save_and_exit`, at one step on all workers
    # For `on_train_end`: runs the model with `training=True` on each batch of one more epoch, and yields the number of
    # batches so far. Layers change what they change in a forward pass. `why_no_pass` says why this fit has none.
    forward_pass: Callable[[], Iterator[int]] | None = None
    why_no_pass: str | None = None
    custom_loop: bool = False  # not our `fit` calls the callback: input and other callbacks are unknown

    @property
    def samples_per_step(self) -> int | None:
        """The samples of most global batches, where that is known: of all workers, where each reads its own batches."""
        size = getattr(self.source, "batch_size", None) or getattr(self.source, "usual_batch_size", None)
        return size and size * (num_workers() if getattr(self.source, "per_worker", False) else 1)

    @property
    def tokens_per_sample(self) -> int | None:
        """The tokens of a sample where all of `x` is text, integers or masks `(batch, tokens)`, of one length; else None."""
        spec = getattr(self.source, "spec", None)
        x = spec[0] if isinstance(spec, tuple | list) else spec  # a custom step may take any number of parts
        lengths = {
            part.shape[1] if _is_text(part) else None for part in tf.nest.flatten(x) if part is not None
        }
        return lengths.pop() if len(lengths) == 1 and lengths != {1} else None


def _is_text(part: tf.TypeSpec) -> bool:
    is_dense = isinstance(part, tf.TensorSpec)
    return is_dense and part.shape.rank == 2 and (part.dtype.is_integer or part.dtype.is_bool)


@dataclasses.dataclass
class ModelRecord:
    """What is kept next to a model from its creation on."""

    runner: Any = None  # of a model made in the scope of a `Pipeline`; None: its strategy says
    distribution: Any = None  # the `keras.distribution` that was set then
    said: set[str] = dataclasses.field(default_factory=set)  # the warnings about its steps


record_of = SideTable(ModelRecord).of


def batch_norms_of(model: Any) -> list[keras.layers.BatchNormalization]:
    """Return every `BatchNormalization` in a model, at any depth."""
    return [layer for layer in layers_of(model) if isinstance(layer, keras.layers.BatchNormalization)]


class TrainedModel(Protocol):
    """A model after `compile`: what is read of it outside `trainer.trainer`, from Keras and from Unisono."""

    # As in `keras.Model`.
    name: str
    built: bool
    dtype_policy: Any
    layers: list[Any]
    losses: list[Any]
    loss: Any
    metrics: list[Any]
    metrics_variables: list[Any]
    variables: list[Any]
    weights: list[Any]
    trainable_weights: list[Any]
    non_trainable_weights: list[Any]
    non_trainable_variables: list[Any]
    jit_compile: Any
    run_eagerly: bool
    train_step: Callable[..., Any]
    test_step: Callable[..., Any]
    predict_step: Callable[..., Any]
    compute_loss: Callable[..., Any]
    compute_metrics: Callable[..., Any]
    get_metrics_result: Callable[[], dict[str, Any]]
    reset_metrics: Callable[[], None]
    count_params: Callable[[], int]
    summary: Callable[..., None]

    distribute_strategy: Any  # the one in whose scope the model was made

    optimizer: Any  # an optimizer of ours (`unisono.optimizers.Optimizer` or a `LossScaleOptimizer`); None without one
    steps_per_execution: int  # what was passed to `compile`; 1 for "auto"
    # Set by callbacks: `fit`, `evaluate` or `predict` ends after this compiled call.
    stop_training: bool
    stop_evaluating: bool
    stop_predicting: bool
    # The compiled steps; None before the first `fit`, `evaluate` or `predict`, and again after `compile`.
    train_function: Any
    test_function: Any
    predict_function: Any
    fit_state: FitState | None  # of the `fit` that is running
    history: keras.callbacks.History  # of the last `fit`
    _evaluating: bool  # whether `evaluate`, or a validation in `fit`, is running
    _runner: Any  # how its steps run: a `trainer.run.fit_loop.Runner`
    _auto_jit: bool  # whether `jit_compile` is "auto"
    _auto_steps: bool  # whether `steps_per_execution` is "auto"
    _fixed_steps: int | None
    _strategy_scope: Callable[[], contextlib.AbstractContextManager[Any]]
    _overrides_step: Callable[[str], bool]
    _has_own_logs: Callable[[bool], bool]
    _optimizer_logs: Callable[[], dict[str, Any]]
    _explain_batch: Callable[[Any], tuple[str, list[dict[str, Any]]]]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs."""

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Return the forward pass."""
