"""`Compilation`: the compile arguments of a model, and the functions that run its steps. A part of `Trainer`."""

import contextlib
import warnings
from typing import TYPE_CHECKING, Any, Never

import keras
import tensorflow as tf

from ..compat.keras_private.serialization import our_classes
from ..compat.keras_private.training import compile_config, filter_traceback, strategy_of
from ..compat.upstream_places import KerasTrainer, TensorFlowTrainer, deserialize_keras_object
from ..distribute.arguments import check_names
from ..distribute.hardware.devices import why_xla_aborts
from ..distribute.hardware.program_cache import PROGRAM_CACHE
from ..distribute.parameter_servers.updates import on_parameter_servers
from ..mixed_precision.policy import check_policy_order, wrap_optimizer
from ..state.trained_model import FitState, TrainedModel, record_of
from . import compile_checks
from .compile_checks import interpret
from .parameter_servers.runner import ParameterServerRunner
from .pipeline.pipeline_runner import attach
from .run.fit_loop import Runner
from .step.variable_placement import bring_along


def runner_of(model: TrainedModel) -> Runner:
    """Return what runs the steps: as the scope of the model says, on workers of parameter servers, or in this process."""
    own = ParameterServerRunner if on_parameter_servers(model.distribute_strategy) else Runner
    return record_of(model).runner or own()


class Compilation(keras.Model if TYPE_CHECKING else object):
    """The mixin. Context of its methods: host, in or outside the strategy's scope."""

    fit_state: FitState | None = None
    _evaluating = False
    _auto_steps = True
    _auto_jit = True

    @property
    def _runner(self) -> Runner:
        return runner_of(self)

    @property
    def _fixed_steps(self) -> int | None:
        """The steps of a compiled call, if a number was passed to `compile`."""
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
        **_unknown: Never,
    ) -> None:
        """Configure the model for training, as `keras.Model.compile` does.

        Args:
            optimizer: the name or an instance of any Keras optimizer, converted in place (`optimizers.adopt`).
            loss: name, `keras.losses.Loss` or function of `(y_true, y_pred)`; with several outputs a list or dict of
                them. None: only the losses that layers add.
            loss_weights: list or dict of floats, one for each output's loss. None: all 1.
            metrics: list of names, metrics or functions; with several outputs a list or dict of such lists.
            weighted_metrics: the same, for metrics to which `sample_weight` and `class_weight` apply.
            run_eagerly: bool; run every step eagerly, to debug it.
            steps_per_execution: "auto": each call of the compiled function runs as many steps as take about 0.1 s, and
                ends where a callback must be called, so callbacks get the same calls as with 1. An int: callbacks are
                called after that many steps, as in Keras.
            jit_compile: True: XLA; False: the plain graph; "auto": whichever is faster for this model on this device.
            auto_scale_loss: bool; wrap the optimizer in a `LossScaleOptimizer` under the policy "mixed_float16".

        Raises:
            ValueError, TypeError: an argument is invalid. The model is then unchanged.
        """
        check_names(self.compile, _unknown)
        given: dict[str, Any] = dict(
            loss=loss,
            loss_weights=loss_weights,
            metrics=metrics,
            weighted_metrics=weighted_metrics,
            run_eagerly=run_eagerly,
        )
        ways = dict(
            steps_per_execution=steps_per_execution, jit_compile=jit_compile, auto_scale_loss=auto_scale_loss
        )
        PROGRAM_CACHE.release_flags()
        compile_checks.check_compile(self, {**given, **ways})
        bring_along(self, "compile")
        attach(self)
        check_policy_order(self)
        with self._strategy_scope():
            optimizer = wrap_optimizer(interpret("optimizer", optimizer, "optimizer"), self, auto_scale_loss)
            TensorFlowTrainer.compile(
                self,
                optimizer=optimizer,
                **given,
                steps_per_execution=1 if steps_per_execution == "auto" else steps_per_execution,  # pyright: ignore[reportArgumentType]
                jit_compile=jit_compile != "auto" and bool(jit_compile),  # pyright: ignore[reportArgumentType]
                auto_scale_loss=False,
            )
        self._auto_steps = steps_per_execution == "auto"
        self._auto_jit = jit_compile == "auto"
        if (problem := why_xla_aborts()) is not None and jit_compile:
            self.jit_compile = False  # "auto" chooses the graph by its rule
            warnings.warn(f"Steps run in the plain graph. {problem}.", stacklevel=2)
        for name, auto in (("steps_per_execution", self._auto_steps), ("jit_compile", self._auto_jit)):
            if auto:
                compile_config(self).pop(name, None)
        self._forget_compiled()

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compile the model with the result of `get_compile_config`. Keras calls this when it loads a model."""
        with our_classes():
            if type(self).compile is not Compilation.compile:
                KerasTrainer.compile_from_config(self, config)
                return
            self.compile(**deserialize_keras_object(config))
        if self.optimizer is not None and self.built:
            with self._strategy_scope():
                self.optimizer.build(self.trainable_variables)

    def _strategy_scope(self) -> Any:
        """Return the scope of the strategy that the model was built under; a null context if there is none to enter."""
        strategy = strategy_of(self)
        if strategy is None or tf.distribute.get_strategy() is strategy:
            return contextlib.nullcontext()
        return strategy.scope()

    def _forget_compiled(self) -> None:
        self.train_function = self.test_function = self.predict_function = None

    def make_train_function(self, force: bool = False) -> Any:
        """Make the function that runs training steps; kept until `compile` is called again."""
        if self.train_function is None or force:
            self.train_function = runner_of(self).function(self, "train")
        return self.train_function

    def make_test_function(self, force: bool = False) -> Any:
        """Make the function that runs evaluation steps."""
        if self.test_function is None or force:
            self.test_function = runner_of(self).function(self, "test")
        return self.test_function

    def make_predict_function(self, force: bool = False) -> Any:
        """Make the function that runs prediction steps."""
        if self.predict_function is None or force:
            self.predict_function = runner_of(self).function(self, "predict")
        return self.predict_function
