"""The model of a case, in Keras or in Unisono."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from ..case import Case, Output
from ..rules import has_targets
from . import layers
from .data import SHAPES, packed
from .losses import loss
from .metrics import metric
from .optimizers import optimizer
from .steps import custom_step


class Network:
    """The layers of a case, and how they are applied: `entries` of each input, `body`, `heads` of each output."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.entries = [
            layers.entry(kind, case.masked) + (layers.pool(case.pool) if kind != "vector" else [])
            for kind in case.inputs
        ]
        self.join = keras.layers.Average()
        self.body = [layers.LAYERS[name]() for name in case.body]
        outputs = zip(case.outputs, output_names(case))
        self.heads = [layers.head(output.kind, name) for output, name in outputs]

    def all_layers(self) -> list[keras.layers.Layer]:
        """For a model that tracks them."""
        sequences = [*self.entries, [self.join], self.body, *self.heads]
        return [layer for sequence in sequences for layer in sequence]

    def __call__(self, inputs: Any) -> Any:
        """The outputs in the structure of the case."""
        flat = [inputs] if len(self.case.inputs) == 1 else keras.tree.flatten(inputs)
        branches = [_applied(entry, x) for entry, x in zip(self.entries, flat)]
        x = self.join(branches) if len(branches) > 1 else branches[0]
        for name, layer in zip(self.case.body, self.body):
            x = layer(layer(x)) if name == "shared" else layer(x)
        outputs = [_applied(head, x) for head in self.heads]
        return packed(outputs, self.case.outputs_as, output_names(self.case))


def _applied(sequence: list[keras.layers.Layer], x: Any) -> Any:
    for layer in sequence:
        x = layer(x)
    return x


def output_names(case: Case) -> list[str]:
    """The names of the outputs: those of their last layers."""
    return [f"out{index}" for index in range(len(case.outputs))]


def input_names(case: Case) -> list[str]:
    """The names of the inputs."""
    return [f"in{index}" for index in range(len(case.inputs))]


def compiled_model(case: Case, module: Any, **how: Any) -> keras.Model:
    """The model of a case, of the classes of `module`; `how`: arguments of `compile` for the loop over steps."""
    model = _model(case, module)

    def each(value: Callable[[Output], Any]) -> Any:
        return packed([value(output) for output in case.outputs], case.outputs_as, output_names(case))

    model.compile(
        optimizer=optimizer(case, module),
        loss=each(loss) if has_targets(case) else None,
        loss_weights=None if case.outputs_as == "single" else each(lambda output: output.loss_weight),
        metrics=each(lambda output: [metric(name) for name in output.metrics]),
        weighted_metrics=each(lambda output: [metric(name) for name in output.weighted_metrics]),
        **how,
    )
    return model


def _model(case: Case, module: Any) -> keras.Model:
    mixins = custom_step(case.step, case.batch, case.own_test_step)
    network = Network(case)
    if case.form == "sequential":
        inputs = _inputs(case)[0]
        sequence = [*network.entries[0], *network.body, *network.heads[0]]
        return _class("OwnSequential", mixins, module.Sequential)([inputs, *sequence])
    if case.form == "functional":
        structure = case.inputs_as if len(case.inputs) > 1 else "single"
        inputs = packed(_inputs(case), structure, input_names(case))
        return _class("OwnModel", mixins, module.Model)(inputs, network(inputs))

    class Subclass(_class("Own", mixins, module.Model)):
        def __init__(self) -> None:
            super().__init__()
            self.network, self.parts = network, network.all_layers()

        def call(self, x, training=False):
            return self.network(x)

    return Subclass()


def _class(name: str, mixins: list[type], base: type) -> type:
    return type(name, (*mixins, base), {}) if mixins else base


def _inputs(case: Case) -> list[Any]:
    return [
        keras.Input(SHAPES[kind], dtype="int32" if kind == "tokens" else None, name=name)
        for kind, name in zip(case.inputs, input_names(case))
    ]
