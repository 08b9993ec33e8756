"""`Trainer`: Keras' training methods, exact under every strategy. A base of every model class of ours.

`compile` is in `compilation.py`, the step in `step/train_step.py`, the loops in `run/loops/` and `run/fit_loop.py`.
"""

import contextlib
from typing import Any, Never

import keras
import tensorflow as tf

from ..compat.keras_private.functional import calls_as_keras
from ..compat.keras_private.training import check_compiled, filter_traceback, logs_in_order
from ..compat.patches import wrap_within
from ..compat.tensorflow_graphs.graphs import leave_as_written
from ..compat.upstream_places import KerasTrainer, TensorFlowTrainer
from ..distribute.arguments import check_names
from ..distribute.parameter_servers.updates import on_parameter_servers
from ..distribute.replicas import in_replica_context, replica_id
from ..distribute.step_context import StepContext, current_step, draws_of
from ..distribute.workers.records import show_own_frames
from ..mixed_precision.policy import check_policy_order
from ..state.trained_model import TrainedModel
from . import compile_checks, fit_checks
from .compilation import Compilation, runner_of
from .run import fit_loop
from .run.checks.overflow import explain_batch, optimizer_logs
from .run.evaluation import evaluate, pass_source, predict
from .run.fit_inputs import FitArguments
from .single_batches import SingleBatches
from .step.first_call import build_outside
from .step.global_metrics import reset
from .step.train_step import default_test_step, default_train_step
from .step.variable_placement import bring_along, place_with_model


@leave_as_written  # a call of a model, too
class Trainer(SingleBatches, Compilation, TensorFlowTrainer):
    """The trainer of a model, as `keras.Model` has one: a base that follows `keras.Model` in the method resolution order.

    So a tool that replaces `keras.Model.fit` (`mlflow.autolog`, Comet, profilers) also replaces that of our models. What it
    has stored as Keras' own calls ours for our models. Context: host, in or outside the strategy's scope.
    """

    def _maybe_build(self, call_spec: Any) -> None:
        """Build as Keras does; build a model that replicas call first, in a custom loop, once for all of them."""
        if (
            not self.built
            and current_step() is None
            and tf.distribute.has_strategy()
            and in_replica_context()
        ):
            build_outside(self, call_spec, tf.distribute.get_strategy())
        super()._maybe_build(call_spec)

    @calls_as_keras
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call as Keras does; in a custom loop each replica draws its own random numbers."""
        if current_step() is not None or not (tf.distribute.has_strategy() and in_replica_context()):
            return super().__call__(*args, **kwargs)
        with _draws_of_replica():
            return super().__call__(*args, **kwargs)

    # The steps. A subclass may override them; they are called in replica context.

    train_step = default_train_step
    test_step = default_test_step

    def predict_step(self, data: Any) -> Any:
        """Run one step of prediction; return the outputs for a batch."""
        return TensorFlowTrainer.predict_step(self, data)

    def _overrides_step(self, name: str) -> bool:
        """Return whether a subclass overrides "train_step", "test_step" or "predict_step"."""
        return _overridden(self, name, Trainer)

    def _has_own_logs(self, training: bool) -> bool:
        """Return whether a step may return logs that are not the results of `self.metrics`."""
        custom_step = self._overrides_step("train_step" if training else "test_step")
        return custom_step or _overridden(self, "compute_metrics", KerasTrainer)

    def reset_metrics(self) -> None:
        """Set every metric to its initial state, on all replicas."""
        for metric in self.metrics:
            reset(metric)

    # For callbacks, which import nothing from here.

    _explain_batch, _optimizer_logs = explain_batch, optimizer_logs

    # The public methods.

    @filter_traceback
    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: Any = True,
        class_weight: Any = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: Any = 1,
        per_replica_batch_size: int | None = None,
        fast_dev_run: bool = False,
        overfit_batches: int | None = None,
        **_unknown: Never,
    ) -> keras.callbacks.History:
        """Train the model, as `keras.Model.fit` does, under the strategy that it was built under.

        Args:
            x: inputs: an array `(batch, ...)` or a nest of them, a dataset, a generator, ...; the guide "Input" lists
                all kinds. Non-array inputs yield batches `(x, y)` or `(x, y, sample_weight)`.
            y: targets `(batch, ...)` or a nest of them, where `x` is arrays.
            batch_size: int; samples of the global batch, over all replicas, where `x` is arrays. None: 32.
            epochs: int; training ends when this many epochs are done, including those before `initial_epoch`.
            verbose: 0: silent; 1 or "auto": a progress bar; 2: one line for each epoch; 3: the number of each epoch.
            callbacks: list of `keras.callbacks.Callback`, or a `CallbackList`.
            validation_split: float from 0 to 1; the share of the samples, taken from the end of arrays before they are
                shuffled, that is used for validation.
            validation_data: `(x, y)`, `(x, y, sample_weight)` or any input that yields batches of these; evaluated after
                an epoch. It takes precedence over `validation_split`.
            shuffle: bool; read arrays, or the batches of a PyDataset, in a new order in every epoch. The shuffle seed is
                derived from Python's `random` state. "batch": shuffle arrays within each batch only.
            class_weight: dict from class (int) to weight (float), for one output; other classes weigh 1.
            sample_weight: weights `(batch,)` of the losses of the samples, or `(batch, steps)` for sequences.
            initial_epoch: int; the epoch, counted from 0, at which training begins.
            steps_per_epoch: int; steps of an epoch. None: one pass over the data.
            validation_steps: int; steps of an evaluation. None: one pass over the validation data.
            validation_batch_size: int; samples of the global batch of validation. None: `batch_size`.
            validation_freq: int n, to evaluate after every n epochs; or a list of epochs, counted from 1.
            per_replica_batch_size: int, instead of `batch_size`: the global batch is this times `num_replicas_in_sync`.
            fast_dev_run: bool; run one step of training and one of validation, to check that everything works.
                Callbacks that write checkpoints or backups are left out.
            overfit_batches: int or None; train only on this many first batches of the data, the same in every epoch and in
                the order of the data, to see whether the model can memorize them.

        Returns:
            The `keras.callbacks.History` of the epochs.

        Raises:
            ValueError, TypeError: an argument is invalid. Raised before the first step, with the weights unchanged.
        """
        given = {name: value for name, value in locals().items() if name not in ("self", "_unknown")}
        check_names(self.fit, _unknown)
        self._ready("fit")
        try:
            return fit_loop.fit(self, FitArguments(self, **given), runner_of(self))
        except KeyboardInterrupt as error:
            if not keras.config.is_traceback_filtering_enabled():
                raise
            raise show_own_frames(error) from None

    @filter_traceback
    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
        per_replica_batch_size: int | None = None,
        **_unknown: Never,
    ) -> Any:
        """Compute the loss and the metrics on `x`, `y`, as `keras.Model.evaluate`. Every sample counts once.

        Args:
            x: inputs of any kind that `fit` takes.
            y: targets `(batch, ...)` or a nest of them, where `x` is arrays.
            batch_size: int; samples of the global batch, where `x` is arrays. None: 32.
            verbose: 0: silent; 1 or "auto": a progress bar; 2: one line.
            sample_weight: weights `(batch,)`, or `(batch, steps)` for sequences, where `x` is arrays.
            steps: int; the number of global batches. None: one pass over the data.
            callbacks: list of `keras.callbacks.Callback`, or a `CallbackList`.
            return_dict: bool; return a dict from the names of the loss and the metrics to their values.
            per_replica_batch_size: int, instead of `batch_size`: the global batch is this times `num_replicas_in_sync`.

        Returns:
            The loss as a float, where there are no metrics; else a list of floats, in the order of `metrics_names`; or a
            dict of floats.
        """
        check_names(self.evaluate, _unknown)
        self._ready("evaluate")
        fit_checks.check_loop(self, verbose, callbacks)
        given = {"x": x, "y": y, "sample_weight": sample_weight, "batch_size": batch_size, "steps": steps}
        with pass_source(self, "test", per_replica_batch_size, **given) as source:
            logs = evaluate(self, source, verbose, callbacks, runner_of(self))
        return logs if return_dict else logs_in_order(self, logs)

    @filter_traceback
    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Any = None,
        per_replica_batch_size: int | None = None,
        **_unknown: Never,
    ) -> Any:
        """Compute the model's outputs for every sample of `x`, in order, as `keras.Model.predict`.

        Args:
            x: inputs of any kind that `fit` takes.
            batch_size: int; samples of the global batch, where `x` is arrays. None: 32.
            verbose: 0: silent; 1 or "auto": a progress bar; 2: one line.
            steps: int; the number of global batches. None: one pass over the data.
            callbacks: list of `keras.callbacks.Callback`, or a `CallbackList`.
            per_replica_batch_size: int, instead of `batch_size`: the global batch is this times `num_replicas_in_sync`.

        Returns:
            A NumPy array `(batch, ...)` or a nest of them; ragged and sparse outputs stay tensors.
        """
        check_names(self.predict, _unknown)
        bring_along(self, "predict")
        fit_checks.check_loop(self, verbose, callbacks)
        fit_checks.check_stateful(self, "predict")
        given = {"x": x, "batch_size": batch_size, "steps": steps}
        with pass_source(self, "predict", per_replica_batch_size, **given) as source:
            return predict(self, source, verbose, callbacks, runner_of(self))

    def _ready(self, method: str) -> None:
        """Reject unsupported setups, and move optimizers and metrics into the strategy of the model's variables."""
        bring_along(self, method)
        check_compiled(self, method)
        compile_checks.check_outside(method)
        fit_checks.check_stateful(self, method)
        if method in ("fit", "train_on_batch"):
            fit_checks.check_compiles(self, method)
            compile_checks.check_optimizer(self, method)
            check_policy_order(self, unless_trained=True)
        place_with_model(self)


def _draws_of_replica() -> contextlib.AbstractContextManager[None]:
    """Let random layers draw this replica's numbers inside. Context: replica, outside a step."""
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if replicas == 1 and not on_parameter_servers():
        return contextlib.nullcontext()
    me = replica_id() if replicas > 1 else 0
    known = tf.get_static_value(me)
    step = StepContext(me if known is None else int(known), replicas, 1, replicas, of_custom_loop=True)
    return draws_of(step)


def _overridden(model: TrainedModel, name: str, base: type) -> bool:
    return getattr(type(model), name) is not getattr(base, name) or name in vars(model)


def _ours_if_ours(name: str) -> None:
    """Let Keras' `fit`, `evaluate` or `predict` call ours for a model of ours."""
    ours = getattr(Trainer, name)
    wrap_within(
        name,
        lambda keras_own, model, *a, **k: (ours if isinstance(model, Trainer) else keras_own)(model, *a, **k),
    )


for _name in ("fit", "evaluate", "predict"):
    _ours_if_ours(_name)
