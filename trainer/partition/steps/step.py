"""A step before it is partitioned: the single-device program, and the objects that it can reach."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ....compat.keras_private.variables import sums_on_read
from ....compat.wrong_use import WrongUse
from ....distribute.mesh import Layout, of_first_copy
from ....distribute.replicas import local_copy, of_first_replica, shares_variables
from ....distribute.sharding.sharded_value import layout_of
from ....distribute.step_context import this_step
from ....optimizers.stages.aggregated_gradients import after_aggregation
from ....optimizers.stages.call_options import CallOptions, call_options, current_options
from ....optimizers.stages.user_code import apply_of
from ..labels import LOGS, REPLICATED, Label, Labels, label_sharded, label_stored
from ..values import SLICES, WHOLE


@dataclasses.dataclass(frozen=True)
class Step:
    """The single-device program.

    Attributes:
        fn: `fn(batch)`: a nest of numbers, such as logs or outputs. User code in it runs once for each trace.
        strategy: the strategy whose replicas share it.
        name: for warnings.
        layers: that it can call; a `BatchNormalization` among them keeps statistics for each replica.
        variables: that it can read, with those of metrics.
        exits: the requested label of its outputs: LOGS, SAMPLES or SHARES.
        notes_weights: whether the divisors of losses are recorded for optimizers that accumulate gradients.
        find_held: returns the variables of TensorFlow that user code holds; called where the step runs on one replica.
    """

    fn: Callable[[Any], Any]
    strategy: tf.distribute.Strategy
    name: str
    layers: Sequence[keras.layers.Layer] = ()
    variables: Sequence[keras.Variable] = ()
    exits: Label = LOGS
    notes_weights: bool = False
    find_held: Callable[[], Sequence[Any]] = tuple


@dataclasses.dataclass
class OptimizerCall:
    """A call of an optimizer in a step, as the single-device program makes it.

    Attributes:
        pairs: gradients and their variables.
        layouts: for each pair how the optimizer needs the gradient; None: it sums it itself.
        written: those of the variables, and of the optimizer's own, that the step has assigned before, and their values.
        weight: the divisor of the loss, or None.
    """

    optimizer: Any
    pairs: list[tuple[Any, Any]]
    layouts: list[Layout | None]
    written: list[tuple[keras.Variable, tf.Tensor]]
    weight: tf.Tensor | None
    options: CallOptions

    @classmethod
    def of(cls, optimizer: Any, pairs: Any, layouts: Callable[..., list[Any]] | None = None) -> OptimizerCall:
        """Record a call; `layouts(optimizer, pairs)` gives those of gradients. Context: the single-device step."""
        step = this_step()
        pairs, options = after_aggregation(optimizer, list(pairs), current_options())
        noted = step.writes.variables
        used = [*(v for _, v in pairs), *optimizer.variables]
        written = [(v, step.writes.state_mapping[id(v)]) for v in used if id(v) in noted]
        options = dataclasses.replace(options, skip_aggregation=False)
        found: list[Layout | None] = [None] * len(pairs) if layouts is None else layouts(optimizer, pairs)
        pairs = [(g if layout is None else _of_shape(g, v), v) for (g, v), layout in zip(pairs, found)]
        return cls(optimizer, pairs, found, written, step.weight_total, options)

    def find_wanted_labels(self) -> list[Labels | None]:
        """Return the labels of the gradients that are not None, and of what is written; None: parts of a sum."""
        found: list[Labels | None] = []
        for (gradient, _), layout in zip(self.pairs, self.layouts):
            if gradient is not None:
                summed = SLICES if isinstance(gradient, tf.IndexedSlices) else None
                found.append(summed if layout is None else labels_of_layout(layout))
        layouts = [layout_of(variable) for variable, _ in self.written]
        return found + [
            WHOLE if layout is None else labels_of_layout(layout.along_model) for layout in layouts
        ]

    def apply(self, gradients: Sequence[Any], written: Sequence[tf.Tensor], weight: tf.Tensor | None) -> None:
        """Call the optimizer with a replica's parts of the gradients, after the first replica's assignments."""
        assign([variable for variable, _ in self.written], written, range(len(written)))
        summed = frozenset(id(v) for (_, v), layout in zip(self.pairs, self.layouts) if layout is not None)
        with call_options(dataclasses.replace(self.options, weight_total=weight, summed=summed)):
            apply_of(self.optimizer)(gradients, [v for _, v in self.pairs])


def _of_shape(gradient: Any, variable: Any) -> tf.Tensor:
    """Return a gradient as a dense tensor of its variable's shape, which is unknown where the shape of the inputs is."""
    gradient = tf.convert_to_tensor(gradient)
    if gradient.shape.is_fully_defined() or layout_of(variable) is not None:  # a part has another shape
        gradient.set_shape(variable.shape)
        return gradient
    return tf.ensure_shape(gradient, variable.shape)


def labels_of_layout(layout: Layout) -> Labels:
    """Return the labels of a variable that is divided, along each axis of the mesh."""
    kinds = [label_stored, *[label_sharded] * (len(layout.axes) - 1)]
    return tuple(REPLICATED if axis is None else kind(axis) for kind, axis in zip(kinds, layout.axes))


def assign(variables: Iterable[Any], values: Iterable[tf.Tensor], shared: Iterable[int]) -> None:
    """Collect assignments of a replica, with values that are whole along the batch.

    Those of the `shared` ones, by number, are the first replica's.
    """
    variables, values, shared = list(variables), list(values), list(shared)
    whole = [number for number in shared if layout_of(variables[number]) is None]
    for number, value in zip(whole, of_first_replica([values[number] for number in whole])):
        values[number] = value
    for number in shared:
        if (layout := layout_of(variables[number])) is not None:
            values[number] = of_first_copy(layout, values[number])
    for variable, value in zip(variables, values):
        if (layout := layout_of(variable)) is not None:
            value = layout.cut_along_batch(
                tf.ensure_shape(value, layout.along_model.part_shape(variable.shape))
            )
        this_step().writes.add_update((variable, value))


def hand_over(variables: Iterable[Any]) -> None:
    """Write the first replica's values into the copies of variables that are not parts of sums. Context: replica."""
    variables = [] if shares_variables() else variables
    copies = [local_copy(variable) for variable in variables if not sums_on_read(variable)]
    if text := [copy.name for copy in copies if copy.dtype == tf.string]:
        raise WrongUse(
            f"A step that runs on one replica writes the text variable {text[0]!r}, which replicas cannot exchange: store "
            "numbers instead, such as positions in a vocabulary, or write it in a callback."
        )
    for copy, value in zip(copies, of_first_replica([tf.identity(copy) for copy in copies])):
        copy.assign(value)
