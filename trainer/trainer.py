"""`Trainer`: Keras' training methods, made exact under every strategy. Mixed into every model class of ours.

It owns what a model knows about its training: the compiled step functions and the state of a running `fit`. What a step
computes is in `step/train_step.py`, how steps are looped in `run/step_function.py`, how epochs run in `run/fit_loop.py`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from .. import mixed_precision
from ..compat.serialization import deserialize_keras_object, our_classes
from ..compat.training import (
    KerasTrainer,
    TensorFlowTrainer,
    check_compiled,
    compile_config,
    filter_traceback,
    logs_in_order,
    strategy_of,
)
from ..mixed_precision.policy import check_policy_order, wrap_optimizer
from ..mixed_precision.skipped_steps import step_logs
from . import checks
from .inputs import make_source
from .pipeline import step as pipeline_step
from .run import fit_loop
from .run.evaluation_loops import evaluate, predict
from .run.on_batch import on_batch, predict_on_batch
from .runner import runner_of
from .step.global_metrics import give_first_replica_the_state
from .step.train_step import default_test_step, default_train_step
from .step.variable_placement import optimizers_of, place_with_model


class Trainer(keras.Model if TYPE_CHECKING else object):
    """The mixin. Context of its methods: host, in or outside of the strategy's scope."""

    fit_state: Any = None
    _pipeline: Any = None
    _auto_steps = True
    _auto_jit = True

    @property
    def _fixed_steps(self) -> int | None:
        """The steps of an execution, where `compile` was given them."""
        return None if self._auto_steps else self.steps_per_execution

    @filter_traceback
    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        run_eagerly: bool = False,
        steps_per_execution: int | str = "auto",
        jit_compile: bool | str = "auto",
        auto_scale_loss: bool = True,
    ) -> None:
        """Configures the model for training, as `keras.Model.compile` does.

        Args:
            optimizer: name, or instance of any Keras optimizer; it is given our stages in place (`optimizers.adopt`).
            loss: as in Keras.
            loss_weights: as in Keras.
            metrics: as in Keras.
            weighted_metrics: as in Keras.
            run_eagerly: bool; run every step eagerly, to debug it.
            steps_per_execution: "auto": as many steps in one call of the compiled function as take about 0.1 s, ended
                where a callback asks to be called; what callbacks see is what they would see at 1. An int means what
                it means in Keras: callbacks are called after that many steps.
            jit_compile: "auto": whichever way is fastest here; True: XLA; False: the plain graph.
            auto_scale_loss: bool; under the policy "mixed_float16", wrap the optimizer in a `LossScaleOptimizer`.

        Raises:
            ValueError, TypeError: an argument that cannot be used; nothing has been changed by then.
        """
        checks.check_compile(steps_per_execution, jit_compile)
        checks.check_home(self, "compile")
        pipeline_step.attach(self)
        check_policy_order(self)
        with self._strategy_scope():
            optimizer = wrap_optimizer(keras.optimizers.get(optimizer), self, auto_scale_loss)
            plain_steps = 1 if steps_per_execution == "auto" else steps_per_execution
            TensorFlowTrainer.compile(
                self,
                optimizer=optimizer,
                loss=loss,
                loss_weights=loss_weights,
                metrics=metrics,
                weighted_metrics=weighted_metrics,
                run_eagerly=run_eagerly,
                steps_per_execution=plain_steps,  # pyright: ignore[reportArgumentType]
                jit_compile=jit_compile != "auto" and bool(jit_compile),  # pyright: ignore[reportArgumentType]
                auto_scale_loss=False,
            )
        self._auto_steps = steps_per_execution == "auto"
        self._auto_jit = jit_compile == "auto"
        if self._auto_steps:
            compile_config(self).pop("steps_per_execution", None)
        if self._auto_jit:
            compile_config(self).pop("jit_compile", None)
        self._forget_compiled()

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles the model from what `get_compile_config` gave (Keras calls this when it loads a model)."""
        with our_classes():
            if type(self).compile is not Trainer.compile:
                KerasTrainer.compile_from_config(self, config)
                return
            self.compile(**deserialize_keras_object(config))
        if self.optimizer is not None and self.built:
            with self._strategy_scope():
                self.optimizer.build(self.trainable_variables)

    def _strategy_scope(self) -> Any:
        """The scope of the strategy that the model was built under; nothing to enter where there is none."""
        strategy = strategy_of(self)
        if strategy is None or tf.distribute.get_strategy() is strategy:
            return contextlib.nullcontext()
        return strategy.scope()

    def _forget_compiled(self) -> None:
        self.train_function = None
        self.test_function = None
        self.predict_function = None

    # The steps. A subclass may override them; they are called in replica context.

    train_step = default_train_step
    test_step = default_test_step

    def predict_step(self, data: Any) -> Any:
        """One step of prediction: the outputs for this replica's rows."""
        return TensorFlowTrainer.predict_step(self, data)

    def _overrides_step(self, name: str) -> bool:
        """Whether a subclass has its own "train_step", "test_step" or "predict_step"."""
        return _overridden(self, name, Trainer)

    def _has_own_logs(self, training: bool) -> bool:
        """Whether a step may return logs that are not the results of `self.metrics`."""
        own_step = self._overrides_step("train_step" if training else "test_step")
        return own_step or _overridden(self, "compute_metrics", KerasTrainer)

    def make_train_function(self, force: bool = False) -> Any:
        """Makes the function that runs training steps; kept until `compile` is called again."""
        if self.train_function is None or force:
            self.train_function = runner_of(self).train_function(self)
        return self.train_function

    def make_test_function(self, force: bool = False) -> Any:
        """Makes the function that runs evaluation steps."""
        if self.test_function is None or force:
            self.test_function = runner_of(self).test_function(self)
        return self.test_function

    def make_predict_function(self, force: bool = False) -> Any:
        """Makes the function that runs prediction steps."""
        if self.predict_function is None or force:
            self.predict_function = runner_of(self).predict_function(self)
        return self.predict_function

    def reset_metrics(self) -> None:
        """Sets every metric to its initial state, on all replicas."""
        super().reset_metrics()
        if strategy_of(self) is not None:
            give_first_replica_the_state(self.metrics, strategy_of(self))

    # What users call.

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
    ) -> keras.callbacks.History:
        """Trains the model, as `keras.Model.fit` does, under the strategy that it was built under.

        Args:
            x: inputs of any kind that Keras takes; the guide "Input" lists them.
            y: targets.
            batch_size: int; rows of the global batch, over all replicas. None: 32.
            epochs: int; the epoch to end at.
            verbose: as in Keras.
            callbacks: as in Keras.
            validation_split: as in Keras.
            validation_data: as in Keras.
            shuffle: as in Keras; a new order in every epoch that depends on the seed alone.
            class_weight: as in Keras.
            sample_weight: as in Keras.
            initial_epoch: as in Keras.
            steps_per_epoch: as in Keras.
            validation_steps: as in Keras.
            validation_batch_size: int; rows of the global batch of validation. None: `batch_size`.
            validation_freq: as in Keras.
            per_replica_batch_size: int; instead of `batch_size`: the global batch is this times `num_replicas_in_sync`.
            fast_dev_run: bool; run one step of training and one of validation, with the callbacks, to see whether
                everything works. Callbacks that write checkpoints or backups are left out.

        Returns:
            `keras.callbacks.History`.

        Raises:
            ValueError, TypeError: before the first step, for what cannot be trained; no weight has changed by then.
        """
        arguments = fit_loop.FitArguments(
            x=x,
            y=y,
            sample_weight=sample_weight,
            batch_size=checks.global_batch_size(self, batch_size, per_replica_batch_size),
            epochs=epochs,
            verbose=verbose,
            callbacks=callbacks,
            validation_split=validation_split,
            validation_data=validation_data,
            shuffle=shuffle,
            class_weight=class_weight,
            initial_epoch=initial_epoch,
            steps_per_epoch=steps_per_epoch,
            validation_steps=validation_steps,
            validation_batch_size=validation_batch_size,
            validation_freq=validation_freq,
            fast_dev_run=fast_dev_run,
        )
        self._ready("fit")
        return fit_loop.fit(self, arguments, runner_of(self))

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
    ) -> Any:
        """The loss and the metrics on `x`, `y`, as `keras.Model.evaluate`: every row counted once.

        Args:
            x: inputs.
            y: targets.
            batch_size: int; rows of the global batch. None: 32.
            verbose: as in Keras.
            sample_weight: as in Keras.
            steps: as in Keras.
            callbacks: as in Keras.
            return_dict: as in Keras.
            per_replica_batch_size: int; as in `fit`.

        Returns:
            A number, a list of numbers, or a dict of them (`return_dict`).
        """
        self._ready("evaluate")
        source = make_source(
            x,
            y,
            sample_weight,
            batch_size=checks.global_batch_size(self, batch_size, per_replica_batch_size),
            steps_per_epoch=steps,
            strategy=self.distribute_strategy,
        )
        with contextlib.closing(source):
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
    ) -> Any:
        """The model's outputs for every row of `x`, in order, as `keras.Model.predict`.

        Args:
            x: inputs.
            batch_size: int; rows of the global batch. None: 32.
            verbose: as in Keras.
            steps: as in Keras.
            callbacks: as in Keras.
            per_replica_batch_size: int; as in `fit`.

        Returns:
            Nest of NumPy arrays `[rows, ...]`; ragged and sparse outputs stay tensors.
        """
        checks.check_home(self, "predict")
        source = make_source(
            x,
            batch_size=checks.global_batch_size(self, batch_size, per_replica_batch_size),
            steps_per_epoch=steps,
            strategy=self.distribute_strategy,
        )
        with contextlib.closing(source):
            return predict(self, source, verbose, callbacks, runner_of(self))

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """One step on one global batch, as `keras.Model.train_on_batch`."""
        self._ready("train_on_batch")
        return on_batch(self, runner_of(self), True, x, y, sample_weight, class_weight, return_dict)

    def test_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False
    ) -> Any:
        """The loss and metrics of one global batch, as `keras.Model.test_on_batch`."""
        self._ready("test_on_batch")
        return on_batch(self, runner_of(self), False, x, y, sample_weight, None, return_dict)

    def predict_on_batch(self, x: Any) -> Any:
        """The outputs for one global batch, as `keras.Model.predict_on_batch`."""
        checks.check_home(self, "predict_on_batch")
        return predict_on_batch(self, runner_of(self), x)

    def _ready(self, method: str) -> None:
        """Refuses what cannot work, and gives optimizers and metrics their place beside the model's variables."""
        checks.check_home(self, method)
        check_compiled(self, method)
        if method in ("fit", "train_on_batch"):
            check_policy_order(self, unless_trained=True)
        place_with_model(self)

    def _explain_batch(self, batch: Any) -> tuple[str, list[dict[str, Any]]]:
        """What is not finite when a step is computed on `batch`, as a sentence, and the batch's statistics."""
        statistics = mixed_precision.batch_statistics(batch)
        try:
            with self._strategy_scope():
                return str(mixed_precision.diagnose(self, batch)), statistics
        except Exception as error:  # a train_step of the user's own may need more than the model and a loss
            return (
                f"Which layer it is is not known: one step computed eagerly fails with {error!r}",
                statistics,
            )

    def _optimizer_logs(self) -> dict[str, Any]:
        """What the optimizers add to the logs: the loss scale and the skipped steps, where there is one."""
        return step_logs(optimizers_of(self))


def _overridden(model: Any, name: str, base: type) -> bool:
    return getattr(type(model), name) is not getattr(base, name) or name in vars(model)
