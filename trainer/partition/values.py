"""The values of a program that is being built, and their conversions to the labels that operations need."""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf

from .labels import (
    EMPTY,
    LOGS,
    MEAN_OF_STATISTICS,
    PARTIAL_SUM,
    REPLICATED,
    SAMPLES,
    SHARES,
    STATISTIC,
    Label,
    Labels,
    needs_collective,
    sizes,
    with_label,
)
from .operations import Call, ask, row_of
from .program import Convert, Copy, Extents, NeedsCollective, NeedsWhole, NotPartitioned, Program, Value
from .sizes.size_arrays import of_one_sample, of_open_extent

SLICES: Labels = ()
"""Instead of the labels that an optimizer needs of a gradient: it is `tf.IndexedSlices`, values and indices."""
WHOLE: Labels = (REPLICATED,)
"""Instead of the labels that an optimizer needs of what a step has assigned: the same on every replica."""


@dataclasses.dataclass
class Values:
    """A program that is being built.

    Attributes:
        program: as far as it is built; its values include those of the outer programs.
        gradients, is_local: as for `partitioned`.
        inside: whether it is the body of a branch or a loop, where collectives are not supported.
        in_order: whether draws have the same numbers on every replica if they have a seed; turns of a loop run in any order.
        whole_ops: names of operations that get whole inputs.
        replicated: whether all operations get whole inputs.
        origin: as for `Copy`, of the graph that is being built.
        states: the ids of assigned tensors; a read of a statistic among them reads its mean.
        made: the numbers of converted values, by the number of the original value, the axis of the mesh and the label.
        again: the operations that can make a value whole once more, by its number.
        makers: the operations that can make a part of a value alone, by its number.
        producers: the names of the operations that made lists, by the number of the list.
    """

    program: Program
    gradients: Sequence[Sequence[Labels | None]]
    is_local: Callable[[tf.Operation], bool]
    inside: bool = False
    in_order: bool = True
    whole_ops: Collection[str] = ()
    replicated: bool = False
    origin: tf.Operation | None = None
    states: set[int] = dataclasses.field(default_factory=set)
    made: dict[Any, int] = dataclasses.field(default_factory=dict)
    again: dict[int, Copy] = dataclasses.field(default_factory=dict)
    makers: dict[int, Copy] = dataclasses.field(default_factory=dict)
    producers: dict[int, str] = dataclasses.field(default_factory=dict)

    def add(self, value: Value) -> int:
        """Return the number of a new value."""
        return self.program.add(value)

    def label(self, number: int) -> Label:
        """Return the label of a value along the axis of the batch."""
        return self.program.values[number].label

    @property
    def replicated_labels(self) -> Labels:
        """The labels of a value that is the same on every replica."""
        return (REPLICATED,) * len(self.program.mesh)

    def whole(self, number: int, cause: tf.Operation | None) -> int:
        """Return the number of a value that is the same on every replica."""
        return self.convert(number, self.replicated_labels, cause)

    def convert(self, number: int, wants: Sequence[Label | None], cause: tf.Operation | None) -> int:
        """Return the number of a value with the requested label along each axis of the mesh; without one it stays as it is.

        Two axes of the mesh can divide one axis of a tensor before and after, so it is gathered before it is divided.
        """
        for axis, want in enumerate(wants):
            value = self.program.values[number]
            have, want = value.labels[axis], _resolve_request(value, axis, want)
            if want is not None and have.is_sharded and needs_collective(have, want) and len(wants) > 1:
                number = self._convert_along(axis, number, REPLICATED, cause)
        have = self.program.values[number].labels
        # What is cut along the model is smaller along the batch. Flat parts are those of what the others leave.
        cuts = [bool(want and want.is_sharded) and label == REPLICATED for want, label in zip(wants, have)]
        order = [2 if want and want.is_stored else 1 for want in wants[:1]] + [not cut for cut in cuts[1:]]
        for axis in sorted(range(len(wants)), key=order.__getitem__):
            number = self._convert_along(axis, number, wants[axis], cause)
        return number

    def gather(self, number: int, op: tf.Operation) -> int:
        """Return an input's number, gathered if replicas keep parts of it; a cast or a copy makes parts of parts."""
        if row_of(op).keeps_stored or not self.label(number).is_stored:
            return number
        return self._convert_along(0, number, REPLICATED, op)

    def add_up(self, number: int, cause: tf.Operation) -> int:
        """Return the number of an operation's input, summed over parts of the model if the operation does more than add.

        Its readers share the sum then. Each of them would sum its own results otherwise.
        """
        if len(self.program.mesh) == 1:
            return number
        scalars = sum(tensor.shape.rank == 0 for tensor in cause.inputs)
        row = row_of(cause)
        adds = row.adds_up or (row.scalar_scales and scalars >= len(cause.inputs) - 1)
        for axis in range(1, len(self.program.mesh)):
            if self.program.values[number].labels[axis].is_partial:
                known = self.made.get((number, axis, REPLICATED), number)
                number = known if adds else self._convert_along(axis, number, REPLICATED, cause)
        return number

    def _convert_along(self, axis: int, number: int, want: Label | None, cause: tf.Operation | None) -> int:
        """Return the number of a value with the requested label along one axis of the mesh."""
        value = self.program.values[number]
        want = _resolve_request(value, axis, want)
        have = value.labels[axis]
        if want is None or have in (want, EMPTY) or value.dtype == tf.resource:
            return number
        if (number, axis, want) in self.made:
            return self.made[number, axis, want]
        of_all = number in self.again and axis == 0 and want == REPLICATED
        if of_all and (value.free or cause is not None or have.is_not_gathered):
            copy = self.again[number]  # of replicated inputs alone
            return self._repeat(copy, number, 0, REPLICATED, [REPLICATED] * len(copy.inputs))
        if axis and want.is_sharded and (part := self._make_part(number, axis, want)) is not None:
            return part
        communicates, summed = needs_collective(have, want), want.is_stored and have == STATISTIC
        scattered = want.is_stored and have == PARTIAL_SUM
        if summed or (communicates and not scattered and want not in (REPLICATED, MEAN_OF_STATISTICS)):
            between = self._convert_along(axis, number, PARTIAL_SUM if summed else REPLICATED, cause)
            return self._convert_along(axis, between, want, cause)
        if communicates and self.inside:
            raise NeedsCollective(f"{cause.type} {cause.name}" if cause is not None else "an output")
        if have.is_not_gathered and communicates:
            raise NotPartitioned(f"no replica can find the whole of a tensor with {have}")
        if value.dtype == tf.variant:
            reason = "makes a list of tensors that would have to be gathered"
            raise NeedsWhole(self.producers.get(number, ""), reason)
        one_size = want == sizes(want.axis) and self.program.one_size and not axis
        numbers = of_one_sample(value.constant, want.axis) if one_size else None
        if want.is_sizes and want.chosen and not axis:
            numbers = of_open_extent(value.constant, want.axis)
        key = (number, axis, want) if numbers is None else (value.dtype, numbers, want)
        if key in self.made:
            return self.made[key]
        labels = with_label(value.labels, axis, want)
        target = self.add(dataclasses.replace(value, labels=labels, free=False))
        if numbers:
            self.program.nodes.append(Extents([], [target], numbers, want.axis))
        else:
            self.program.nodes.append(Convert([number], [target], cause, axis))
        self.made[key] = target
        return target

    def _make_part(self, number: int, axis: int, want: Label) -> int | None:
        """Return a part of a value that is the same along an axis of the mesh; its operation makes only this part."""
        copy = self.makers.get(number)
        wants = self._find_wants_of_part(copy, number, axis, want)
        return None if copy is None or wants is None else self._repeat(copy, number, axis, want, wants)

    def _repeat(self, copy: Copy, number: int, axis: int, label: Label, wants: Sequence[Label | None]) -> int:
        """Return another label of a value along an axis of the mesh: its operation runs once more, on inputs like these."""
        inputs = [self._convert_along(axis, each, want, copy.op) for each, want in zip(copy.inputs, wants)]
        values, outputs = self.program.values, copy.outputs if len(copy.outputs) > 1 else [number]
        targets = [
            self.add(dataclasses.replace(v, labels=with_label(v.labels, axis, label), free=False))
            for v in [values[each] for each in outputs]
        ]
        made = [with_label(labels, axis, label) for labels in copy.made]
        self.program.nodes.append(dataclasses.replace(copy, inputs=inputs, outputs=targets, made=made))
        self.made.update({(each, axis, label): target for each, target in zip(outputs, targets)})
        return self.made[number, axis, label]

    def _find_wants_of_part(
        self, copy: Copy | None, number: int, axis: int, want: Label
    ) -> Sequence[Label | None] | None:
        """Return the labels with which an operation makes a part; None: it makes the whole."""
        values = self.program.values
        value = values[number]
        if copy is None or value.labels[axis] != REPLICATED or want.blocks > 1 or value.shape is None:
            return None
        if any(each.is_sharded and each.axis == want.axis for each in value.labels):
            return None
        call = Call(copy.op, [values[each] for each in copy.inputs])
        wants = ask(row_of(copy.op).part, call, value, want, self.program.mesh[axis])
        parts = [(each, own) for each, own in zip(copy.inputs, wants or ()) if own and own.is_sharded]
        can = all(self._find_wants_of_part(self.makers.get(each), each, axis, own) for each, own in parts)
        return wants if can else None

    def read(self, tensor: Any, number: int, cause: tf.Operation | None) -> int:
        """Return the number of the value of a tensor: of an assigned statistic, its mean."""
        if id(tensor) not in self.states or self.label(number) != STATISTIC:
            return number
        return self.convert(self.convert(number, [MEAN_OF_STATISTICS], cause), [REPLICATED], cause)


def _resolve_request(value: Value, axis: int, want: Label | None) -> Label | None:
    """Return the label along an axis of the mesh that a request stands for; None: the value stays as it is."""
    have = value.labels[axis]
    # Along the others as the parts of the batch were requested.
    if axis and want in (SAMPLES, SHARES, LOGS, MEAN_OF_STATISTICS):
        return PARTIAL_SUM if value.label == PARTIAL_SUM else REPLICATED
    if want == MEAN_OF_STATISTICS and have != STATISTIC:
        return REPLICATED
    if want == LOGS:
        return PARTIAL_SUM if have == PARTIAL_SUM and value.dtype != tf.bool else REPLICATED
    if want in (SAMPLES, SHARES):
        as_it_is = have.is_sharded and have.axis == 0 and have.blocks == 1 and not have.is_not_gathered
        adds = value.dtype not in (tf.bool, tf.string)
        return None if as_it_is else PARTIAL_SUM if want == SHARES and adds else REPLICATED
    return want
