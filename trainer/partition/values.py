"""The values of a program that is being built, and their conversions to the labels that operations need."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf

from .labels import (
    LOGS,
    MEAN_OF_STATISTICS,
    PARTIAL_SUM,
    REPLICATED,
    SAMPLES,
    SHARES,
    STATISTIC,
    Label,
    is_sharded,
    needs_collective,
    sizes,
)
from .program import Convert, Copy, Extents, ListIsGathered, NeedsCollective, Program, Value, of_one_sample
from .rules.lists import EMPTY


@dataclasses.dataclass
class Values:
    """A program that is being built.

    Attributes:
        program: as far as it is built; its values include those of the outer programs.
        slices, is_local: as for `partitioned`.
        inside: whether it is the body of a branch or a loop, where collectives are not supported.
        whole_ops: names of operations that get whole inputs.
        replicated: whether all operations get whole inputs.
        states: the ids of assigned tensors; a read of a statistic among them reads its mean.
        made: the numbers of converted values, by the number of the original value and the label.
        again: the operations that can make a value whole once more, by its number.
        producers: the names of the operations that made lists, by the number of the list.
    """

    program: Program
    slices: Sequence[Sequence[bool]]
    is_local: Callable[[tf.Operation], bool]
    inside: bool = False
    whole_ops: Collection[str] = ()
    replicated: bool = False
    states: set[int] = dataclasses.field(default_factory=set)
    made: dict[Any, int] = dataclasses.field(default_factory=dict)
    again: dict[int, Copy] = dataclasses.field(default_factory=dict)
    producers: dict[int, str] = dataclasses.field(default_factory=dict)

    def add(self, value: Value) -> int:
        """The number of a new value."""
        self.program.values.append(value)
        return len(self.program.values) - 1

    def label(self, number: int) -> Label:
        """The label of a value."""
        return self.program.values[number].label

    def body(self, graph: Any, inputs: Sequence[int], changed: Sequence[int] = ()) -> tuple[Any, list[int]]:
        """Partitions a function for inputs like these; constants of the `changed` inputs do not hold in it."""
        raise NotImplementedError

    def converted(self, number: int, want: Label | None, cause: tf.Operation | None) -> int:
        """The number of a value with the requested label."""
        value = self.program.values[number]
        have = value.label
        if want == MEAN_OF_STATISTICS and have != STATISTIC:
            want = REPLICATED
        if want == LOGS:
            want = PARTIAL_SUM if have == PARTIAL_SUM and value.dtype != tf.bool else REPLICATED
        if want in (SAMPLES, SHARES):
            as_it_is = is_sharded(have) and have.axis == 0 and have.blocks == 1 and not have.counts
            adds = value.dtype not in (tf.bool, tf.string)
            want = None if as_it_is else PARTIAL_SUM if want == SHARES and adds else REPLICATED
        if want is None or have in (want, EMPTY) or value.dtype == tf.resource:
            return number
        if (number, want) in self.made:
            return self.made[number, want]
        if number in self.again and want == REPLICATED and (value.free or cause is not None):
            return self._whole(number)
        if needs_collective(have, want) and want not in (REPLICATED, MEAN_OF_STATISTICS):
            return self.converted(self.converted(number, REPLICATED, cause), want, cause)
        if needs_collective(have, want) and self.inside:
            raise NeedsCollective(f"{cause.type} {cause.name}" if cause is not None else "an output")
        if value.dtype == tf.variant:
            raise ListIsGathered(self.producers.get(number, ""))
        numbers = (
            of_one_sample(value.constant, want.axis)
            if want == sizes(want.axis) and self.program.one_size
            else None
        )
        key = (number, want) if numbers is None else (value.dtype, numbers, want)
        if key in self.made:
            return self.made[key]
        target = self.add(dataclasses.replace(value, label=want, free=False))
        node = Extents([], [target], numbers, want.axis) if numbers else Convert([number], [target], cause)
        self.program.nodes.append(node)
        self.made[key] = target
        return target

    def read(self, tensor: Any, number: int, cause: tf.Operation | None) -> int:
        """The number of the value of a tensor: of an assigned statistic, its mean."""
        if id(tensor) not in self.states or self.label(number) != STATISTIC:
            return number
        return self.converted(self.converted(number, MEAN_OF_STATISTICS, cause), REPLICATED, cause)

    def _whole(self, number: int) -> int:
        """The whole of a value made of replicated inputs alone: its operations run once more, on whole inputs."""
        copy = self.again[number]
        value = self.program.values[number]
        target = self.add(dataclasses.replace(value, label=REPLICATED, free=False))
        inputs = [self.converted(each, REPLICATED, copy.op) for each in copy.inputs]
        again = dataclasses.replace(
            copy, inputs=inputs, outputs=[target], made=[REPLICATED], of_samples=False
        )
        self.program.nodes.append(again)
        self.made[number, REPLICATED] = target
        return target
