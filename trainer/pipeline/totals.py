"""What the jobs of a pipelined step add up to: losses, gradients, and what layers wrote."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ...compat.random_state import global_seed_generator_state
from ...distribute.step_context import StepContext
from .graph import Stage
from .state import NotedWrites, merge
from .tensors import add_gradients, flatten

State = dict[int, tuple[Any, Any]]  # a variable's id -> the variable and its value


class Totals:
    """Owns the sums of one step and the state that each micro-batch has come to. Knows no schedule.

    Args:
        stages: the stages, with their devices.
        steps: the micro-batches of all replicas, one replica's after the other's.
        replicas: int; R.
    """

    def __init__(self, stages: Sequence[Stage], steps: Sequence[StepContext], replicas: int) -> None:
        self._stages, self._steps, self._replicas = stages, steps, replicas
        self.losses: list[tf.Tensor] = []
        self._gradients: dict[tuple[int, int], Any] = {}
        self._start = self._random_states()
        self._random: list[State] = [dict(self._start) for _ in steps]
        self._other: State = {}
        self._writes: list[State] = [{} for _ in steps]

    def _random_states(self) -> State:
        states = [v for stage in self._stages for v in stage.random_states]
        unseeded = global_seed_generator_state()
        states += [] if unseeded is None else [unseeded]
        return {id(v): (v, tf.convert_to_tensor(v.value)) for v in states}

    def state(self, q: int) -> State:
        """What micro-batch q reads besides weights: its random state, and what others left in other variables."""
        return {**self._other, **self._random[q]}

    def note_writes(self, q: int, scope: NotedWrites) -> None:
        """Takes up what one pass of micro-batch q wrote.

        Raises:
            ValueError: if that is a trainable variable: its gradient would be that of the value before.
        """
        own = {id(v) for stage in self._stages for v in stage.weights}
        for variable, value in scope.writes():
            if id(variable) in self._start:
                self._random[q][id(variable)] = (variable, value)
            elif id(variable) in own:
                if variable.trainable:
                    raise ValueError(
                        f"{variable.path!r} is trainable and assigned by a layer's call, which a pipeline cannot do "
                        f"exactly: make it trainable=False, or train without a Pipeline"
                    )
                self._writes[q][id(variable)] = (variable, value)
            else:
                self._other[id(variable)] = (variable, value)

    def add_losses(self, q: int, added: Sequence[tf.Tensor]) -> None:
        """Adds what layers added to the loss of micro-batch q, in units of its local mean."""
        self.losses += [loss * self._steps[q].share(loss.dtype) for loss in added]

    def add_gradient(self, q: int, key: int, gradient: Any) -> None:
        """Adds micro-batch q's gradient of the variable with the id `key`; None is nothing."""
        if gradient is not None:
            place = (self._replica(q), key)
            self._gradients[place] = add_gradients(self._gradients.get(place), gradient)

    def sums(self, stage: Stage, q: int) -> list[Any]:
        """The gradients of a stage as summed so far on micro-batch q's replica, flat."""
        sums = [self._gradients.get((self._replica(q), id(variable))) for variable in stage.trainable]
        return flatten(sums)

    def _replica(self, q: int) -> int:
        return q * self._replicas // len(self._steps)

    def gradients(self) -> dict[int, Any]:
        """The gradient of each trainable variable by its id, summed over the replicas on the variable's device."""
        result = {}
        for stage in self._stages:
            with tf.device(stage.devices[0]):
                for variable in stage.trainable:
                    parts = [self._gradients.get((r, id(variable))) for r in range(self._replicas)]
                    result[id(variable)] = functools.reduce(add_gradients, parts)
        return result

    def loss(self) -> Any:
        """The sum of all losses, on the last stage; None if there are none."""
        with tf.device(self._stages[-1].devices[0]):
            if len(self.losses) < 2:
                return self.losses[0] if self.losses else None
            dtype = self.losses[0].dtype
            return tf.add_n([tf.cast(loss, dtype) for loss in self.losses])

    def writes(self) -> list[tuple[Any, tf.Tensor]]:
        """Averages over the micro-batches, random state of the first, other state as the last left it."""
        result: list[tuple[Any, Any]] = []
        for stage in self._stages:
            own = {id(v) for v in stage.weights}
            writes = [{k: pair for k, pair in of_one.items() if k in own} for of_one in self._writes]
            with tf.device(stage.devices[0]):
                result += merge(writes, self._steps, stage.layers)
        drawn = [pair for key, pair in self._random[0].items() if pair[1] is not self._start[key][1]]
        return result + drawn + list(self._other.values())
