"""Records each step in the compiled loop: the logs in a buffer, and whether the loss is finite."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ....compat.keras_private.variables import plain_variable
from ....mixed_precision.skipped_steps import step_values
from ....optimizers.building import optimizers_of
from ....optimizers.stages.step_hooks import StepHook
from ....state.trained_model import TrainedModel

MOST_STEPS = 4096
"""Maximum steps of a compiled call whose steps are recorded, unless the user set more."""


class StepRecorder(StepHook):
    """Owns a buffer on the model's device, a matrix with a row for each step of a compiled call.

    The entry is written after the step has finished, so that entries are available when a later step fails. Numbers are
    stored as float64, which represents every shorter float and every count below 2**53 exactly. If it `records`, logs are
    kept. If it `halts`, the loop ends after a step whose loss is NaN or infinite. If it `follows` the optimizers, their
    scalars (`iterations`, the learning rate) are kept with the logs. `device` is that of the model's variables. Steps that
    are not `training` have no logs of the optimizers.
    """

    takes_logs = True

    def __init__(
        self,
        model: TrainedModel,
        training: bool,
        records: bool,
        halts: bool,
        follows: bool,
        most_steps: int,
        device: str,
    ) -> None:
        self._model, self._training, self.records, self.halts = model, training, records, halts
        self._follows, self._scalars = follows, dict[str, keras.Variable]()
        self._capacity, self._device = most_steps, device
        self._layout: list[tf.TensorSpec] | None = None
        self._buffer: tf.Variable | None = None
        self._rejected = False
        with tf.device(device):
            self._count = plain_variable(tf.constant(0, tf.int64))
            self._halted = plain_variable(tf.constant(False))

    @property
    def most_steps(self) -> int:
        """Maximum steps of a compiled call: one, where a log is not a number of a fixed shape and cannot be kept."""
        return 1 if self._rejected else self._capacity

    def begin(self) -> None:
        """Begin a compiled call."""
        if self.records:
            self._count.assign(0)
        if self.halts:
            self._halted.assign(False)

    def after_step(self, logs: Mapping[str, Any]) -> None:
        """Record the logs of a step, or of the metrics where it has none of its own; under XLA too."""
        model = self._model
        also = step_values(optimizers_of(model)) if self._training else {}
        logs = flat({**(logs or model.get_metrics_result()), **also})
        if self.halts and "loss" in logs:
            loss = tf.convert_to_tensor(logs["loss"])
            self._halted.assign(tf.logical_not(tf.reduce_all(tf.math.is_finite(loss))))
        if self._follows:
            self._scalars = {f"\0{n}": variable for n, variable in enumerate(_scalars(model))}
            logs.update({name: variable.value for name, variable in self._scalars.items()})
        if self.records and self._can_keep(logs):
            assert self._buffer is not None
            at = self._count.assign_add(1).read_value() - 1
            self._buffer.scatter_update(tf.IndexedSlices(_row(logs, self._layout or []), at))

    def goes_on(self, more: Any) -> Any:
        """Return whether there is `more` to do and the loss is finite; bool tensor."""
        return tf.logical_and(more, tf.logical_not(self._halted)) if self.halts else more

    def is_halted(self) -> bool:
        """Return whether the last step's loss was not finite. Context: host."""
        return self.halts and bool(self._halted.numpy())

    def rows(self) -> tuple[dict[str, np.ndarray], dict[int, np.ndarray]]:
        """Return the logs, name -> `(steps, ...)`, and scalars, id -> `(steps,)`, of this call so far. Context: host."""
        if self._buffer is None or not self._layout or self._rejected:
            return {}, {}
        rows = self._buffer[: self._count].numpy()
        parts = np.split(rows, np.cumsum([log.shape.num_elements() for log in self._layout])[:-1], axis=1)
        logs = {
            log.name: part[:, 0]
            if log.shape.rank == 0
            else part.reshape(-1, *log.shape).astype(log.dtype.as_numpy_dtype)
            for log, part in zip(self._layout, parts)
        }
        return logs, {id(variable): logs.pop(name) for name, variable in self._scalars.items()}

    def _can_keep(self, logs: Mapping[str, Any]) -> bool:
        layout = [_describe(name, value) for name, value in logs.items()]
        known = [log for log in layout if log is not None]
        if not known or len(known) < len(layout) or self._layout not in (None, known):
            self._rejected = True
        elif self._layout is None:
            self._layout = known
            shape = [self._capacity, sum(log.shape.num_elements() for log in known)]
            with tf.init_scope(), tf.device(self._device):
                self._buffer = plain_variable(tf.zeros(shape, tf.float64))
        return not self._rejected


def flat(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the logs without nested dicts, in the order in which callbacks get them."""
    result: dict[str, Any] = {}
    for name, value in sorted(logs.items()):
        result.update(flat(value) if isinstance(value, dict) else {name: value})
    return result


def _scalars(model: TrainedModel) -> list[keras.Variable]:
    """Return the variables of optimizers that are one number."""
    found = (variable for each in optimizers_of(model) for variable in each.variables)
    return [each for each in found if isinstance(each, keras.Variable) and each.shape == ()]


def _row(logs: Mapping[str, Any], layout: list[tf.TensorSpec]) -> tf.Tensor:
    """Return the concatenated logs, as float64; where all are scalars of one dtype with two operations."""
    if all(log.shape.rank == 0 and log.dtype == layout[0].dtype for log in layout):
        return tf.cast(tf.stack([logs[log.name] for log in layout]), tf.float64)
    if all(log.shape.rank == 0 for log in layout):
        return tf.stack([tf.cast(logs[log.name], tf.float64) for log in layout])
    return tf.concat([tf.reshape(tf.cast(logs[log.name], tf.float64), [-1]) for log in layout], 0)


def _describe(name: str, value: Any) -> tf.TensorSpec | None:
    """Return the stored form of a log; None if it cannot be stored: it is not a number, or its shape is not known."""
    try:
        tensor = tf.convert_to_tensor(value)
    except (TypeError, ValueError):
        return None
    numeric = tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool
    fits = numeric and tensor.shape.is_fully_defined()
    return tf.TensorSpec(tensor.shape, tensor.dtype, name) if fits else None
