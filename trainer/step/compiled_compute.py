"""What XLA compiles, and what must stay outside: collectives, strings, and everything that talks to the host."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras

from ...callbacks.trained_model import TrainedModel
from ...compat.graphs import graph_function
from ...compat.layers import get_keras_mask, set_keras_mask
from ...distribute.step_context import WeightTotals, step_scope, this_step
from .collected_writes import CollectedWrites
from .train_step import forward_and_backward


def compiled_forward_and_backward(
    model: TrainedModel, variables: list[Any], data: Any
) -> tuple[Any, list[Any], Any]:
    """`forward_and_backward`, compiled: the forward and backward pass of one of several replicas.

    The writes that Keras variables get inside are handed to the step outside, as are masks and weight totals. Arguments
    and result are those of `forward_and_backward`.

    Raises:
        ValueError: (from a collective inside) the loss or a layer needs numbers of the other replicas.

    Context: replica, inside a `StepContext`.
    """
    step = this_step()
    seen: dict[str, Any] = {}

    def inner(leaves: list[Any]) -> Any:
        present = iter(leaves)
        nest = keras.tree.map_structure(lambda leaf: None if leaf is None else next(present), data)
        totals = WeightTotals() if step.totals is not None else None
        own = dataclasses.replace(step, totals=totals, notes={}, in_xla=True)
        with CollectedWrites() as writes, step_scope(own):
            own.writes = writes
            loss, gradients, outputs = forward_and_backward(model, variables, nest)
        flat = keras.tree.flatten(outputs)
        masks = [get_keras_mask(tensor) for tensor in flat]
        seen.update(
            variables=[variable for variable, _ in writes.items()],
            given=[g is not None for g in gradients],
            masked=[mask is not None for mask in masks],
            outputs=outputs,
        )
        return (
            loss,
            [g for g in gradients if g is not None],
            flat,
            [mask for mask in masks if mask is not None],
            [value for _, value in writes.items()],
            totals.noted if totals is not None else [],
        )

    leaves = [leaf for leaf in keras.tree.flatten(data) if leaf is not None]
    loss, gradients, flat, masks, values, totals = graph_function(inner, jit_compile=True)(leaves)
    for variable, value in zip(seen["variables"], values):
        variable.assign(value)  # noted by the scope outside
    if step.totals is not None:
        step.totals.noted.extend(totals)
    rest, mask = iter(gradients), iter(masks)
    for tensor, masked in zip(flat, seen["masked"]):
        if masked:
            set_keras_mask(tensor, next(mask))
    outputs = keras.tree.pack_sequence_as(seen["outputs"], flat)
    return loss, [next(rest) if given else None for given in seen["given"]], outputs
