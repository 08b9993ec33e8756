"""The numbers of which another one is computed: a ratio of two sums, the root of a mean, a sum over rows plus a penalty.

A number that is no mean over the rows and no sum over them is often a function of numbers that are. Those are joined over
the replicas, and the function is computed again from what they are for the whole batch. Its derivatives there weigh the
gradients of the parts, so that what the replicas give adds up to the gradient of the whole (the chain rule):

    L = f(s_1, ..., s_k),  s_i = sum_r w_ir s_ir   =>   dL = sum_r sum_i df/ds_i w_ir ds_ir

Context: replica, in the graph of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ...compat.edges import holds_functions, made_again
from ...distribute.collectives import refuse_collective
from ...distribute.join_rules import ACROSS_ROWS, LARGEST, SAME, SMALLEST
from ...distribute.replicas import all_reduce_sum_packed
from ...distribute.step_context import StepContext

_EXTREMES = {LARGEST: tf.reduce_max, SMALLEST: tf.reduce_min}
_MADE_BY = {"Max": LARGEST, "Any": LARGEST, "Min": SMALLEST, "All": SMALLEST}
_FREE = ("Const", "HostConst")
_WHOLE = "gradients that were taken"
_OF_ROWS = ("Shape", "ShapeN")  # their outputs have a known shape, but are no numbers to be joined


def parts_of(value: Any, step: StepContext, of_any_shape: bool = False) -> list[tf.Tensor]:
    """The tensors without rows that `value` is computed of by operations on such alone, in a fixed order.

    Each of them is computed from tensors with rows (sums, counts, a matrix of covariances) or read from a variable, or is a
    number of rows of the step. What has no rows is told by its shape, which is known. It may be `value` itself.

    Args:
        value: scalar, in a graph in which the rows of a batch are not known; anything else has no parts.
        step: in which it is computed.
        of_any_shape: whether tensors of a shape that is known have parts, too.
    """
    if not isinstance(value, tf.Tensor) or hasattr(value, "numpy"):
        return []
    has_parts = value.shape.rank == 0 or (of_any_shape and value.shape.is_fully_defined())
    return list(_computed(value, step)[0].values()) if has_parts else []


def rule_by_form(part: tf.Tensor) -> str | None:
    """The rule of a part that its values do not tell: the largest of two parts may be equal, and look like a mean."""
    found = _MADE_BY.get(part.op.type)
    return ACROSS_ROWS if found is None and part.dtype.is_bool else found


def keep_whole(gradients: Iterable[Any], step: StepContext) -> None:
    """What depends on these gradients has no parts: if they are joined, it is joined with them."""
    step.notes.setdefault(_WHOLE, {}).update({id(g): g for g in gradients})


def used_by(value: Any, step: StepContext) -> set[int]:
    """The ids of the tensors between a tensor without rows and its parts."""
    symbolic = isinstance(value, tf.Tensor) and not hasattr(value, "numpy")
    return _walked(value, step)[-1] if symbolic else set()


def _computed(value: tf.Tensor, step: StepContext) -> tuple[dict[int, tf.Tensor], list[tf.Operation]]:
    """The parts of a number, by the id of what tells them apart; and the operations on them, in an order of dependence.

    There are none where it depends on what the replicas have exchanged already: another trace has that from elsewhere.
    """
    whole = {*step.notes.get(_WHOLE, {}), *map(id, () if step.observer is None else step.observer.exchanged)}
    parts, operations, seen = _walked(value, step)
    return ({}, []) if seen & whole else (parts, operations)


def _walked(value: tf.Tensor, step: StepContext) -> tuple[dict[int, tf.Tensor], list[tf.Operation], set[int]]:
    numbers = {id(step.rows), id(step.global_rows)}
    parts: dict[int, tf.Tensor] = {}
    operations: dict[tf.Operation, None] = {}
    seen, waiting = set[int](), [(value, False)]
    while waiting:
        each, inputs_are_there = waiting.pop()
        if inputs_are_there:
            operations[each.op] = None
        elif id(each) not in seen and each.op.type not in _FREE:
            seen.add(id(each))
            if id(each) not in numbers and _without_rows(each.op):
                waiting += [(each, True), *((given, False) for given in reversed(each.op.inputs))]
            elif id(each) in numbers or not _is_constant(each.op):
                parts.setdefault(_source(each), each)
    return parts, list(operations), seen


def _source(part: tf.Tensor) -> int:
    """What tells a part from others: a variable is one, however often it is read."""
    return id(part.op.inputs[0] if part.op.type == "ReadVariableOp" else part)


def _without_rows(op: tf.Operation) -> bool:
    """Whether an operation computes its outputs from tensors without rows, and nothing else happens."""
    given = [each for each in op.inputs if each.op.type not in _FREE]
    if not given or op.op_def.is_stateful or holds_functions(op):
        return False
    return all(
        each.shape.is_fully_defined() and each.dtype != tf.resource and each.op.type not in _OF_ROWS
        for each in given
    )


def _is_constant(op: tf.Operation) -> bool:
    return not op.op_def.is_stateful and bool(op.inputs) and all(i.op.type in _FREE for i in op.inputs)


def number_of_all(
    what: tuple[Any, ...], value: tf.Tensor, step: StepContext, has_gradient: bool = False
) -> tf.Tensor:
    """A number of a step as it is to be joined: that of the whole batch, where rules were found for its parts."""
    if step.observer is not None:
        step.observer.computed(what, value, step)
    rules = step.rules.parts.get(what)
    if rules is None or step.num_replicas == 1:
        return value
    return differentiable(value, rules, step) if has_gradient else joined(value, rules, step)[0]


def joined(value: tf.Tensor, rules: Sequence[str], step: StepContext) -> tuple[Any, list[Any], list[Any]]:
    """A number of the whole batch, from what its parts are there.

    Args:
        value: scalar, or without rows.
        rules: of its parts.
        step: this replica's.

    Returns:
        The number; its parts on this replica; and what they are for the whole batch.

    Raises:
        RuntimeError: it has other parts than rules were found for.
        ValueError: XLA compiles this part of the step.
    """
    refuse_collective("a number that code of yours computes of means or sums over the rows")
    found, operations = _computed(value, step)
    parts = list(found.values())
    if len(parts) != len(rules):
        raise RuntimeError(f"A number has {len(parts)} parts, where {len(rules)} were found before: {value}.")
    own = [_contribution(part, rule, step) for part, rule in zip(parts, rules) if rule != SAME]
    sums = iter(all_reduce_sum_packed(own))
    totals = [
        tf.identity(part) if rule == SAME else _total(next(sums), part.dtype, rule)
        for part, rule in zip(parts, rules)
    ]
    return _again(value, operations, dict(zip(found, totals))), parts, totals


def gradient(
    take: Callable[..., Any], target: tf.Tensor, rules: Sequence[str], step: StepContext, sources: Any
) -> Any:
    """This replica's part of the gradient of a number of the whole batch; the sum over the replicas is the gradient.

    Args:
        take: `take(targets, sources, output_gradients=)`, of a tape.
        target: scalar.
        rules: of its parts.
        step: this replica's.
        sources: what to differentiate with respect to.
    """
    _, slopes = _slopes(target, rules, step)
    return take([part for part, _ in slopes], sources, output_gradients=[slope for _, slope in slopes])


def differentiable(value: tf.Tensor, rules: Sequence[str], step: StepContext) -> tf.Tensor:
    """A number of the whole batch whose gradient, weighted with this replica's share of the rows, is this replica's part.

    Arguments as `joined`.
    """
    whole, slopes = _slopes(value, rules, step)
    share = step.share(tf.float64)
    result = tf.stop_gradient(whole)
    for part, slope in slopes:
        slope = tf.stop_gradient(tf.math.divide_no_nan(slope, tf.cast(share, slope.dtype)))
        result += tf.cast(tf.reduce_sum(slope * (part - tf.stop_gradient(part))), result.dtype)
    return result


def _slopes(
    value: tf.Tensor, rules: Sequence[str], step: StepContext
) -> tuple[tf.Tensor, list[tuple[tf.Tensor, tf.Tensor]]]:
    """A number of the whole batch; its parts on this replica, with the weights of their gradients."""
    whole, parts, totals = joined(value, rules, step)
    numbers = [index for index, part in enumerate(parts) if part.dtype.is_floating]
    slopes = tf.gradients(whole, [totals[index] for index in numbers]) if numbers else []
    return whole, [
        (parts[i], tf.convert_to_tensor(slope) * _weight(parts[i], totals[i], rules[i], step))
        for i, slope in zip(numbers, slopes)
        if slope is not None
    ]


def _contribution(part: tf.Tensor, rule: str, step: StepContext) -> tf.Tensor:
    """What this replica adds to a sum over the replicas; of what is the largest or smallest a place for each of them."""
    part = tf.cast(part, tf.float64)
    if rule not in _EXTREMES:
        return tf.math.multiply_no_nan(part, step.weight(rule, tf.float64))
    neutral = tf.constant(-np.inf if rule == LARGEST else np.inf, tf.float64)
    own = tf.one_hot(step.replica_id, step.num_replicas, dtype=tf.float64) > 0
    own = tf.reshape(own, [-1, *[1] * part.shape.rank])
    others = tf.zeros([], tf.float64) if step.observer is None else neutral  # which stands in for them
    return tf.where(own, tf.where(step.alive, part, neutral), others)


def _total(total: tf.Tensor, dtype: tf.DType, rule: str) -> tf.Tensor:
    if rule in _EXTREMES:
        total = _EXTREMES[rule](total, axis=0)
    if dtype.is_bool:
        return total > 0.5
    return tf.cast(total if dtype.is_floating else tf.round(total), dtype)


def _weight(part: tf.Tensor, total: tf.Tensor, rule: str, step: StepContext) -> tf.Tensor:
    """What the gradient of a part is weighted with; of what is the largest, only the replica that has it counts."""
    if rule not in _EXTREMES:
        return step.weight(rule, part.dtype)
    has_it = tf.cast(tf.logical_and(step.alive, tf.equal(part, total)), part.dtype)
    return tf.math.divide_no_nan(has_it, all_reduce_sum_packed([has_it])[0])


def _again(value: tf.Tensor, operations: Sequence[tf.Operation], known: dict[int, tf.Tensor]) -> tf.Tensor:
    """`value`, computed by these operations from what is known in place of their sources."""
    for op in operations:
        inputs = [known.get(_source(each), each) for each in op.inputs]
        known.update(zip(map(id, op.outputs), made_again(op, inputs)))
    return known[_source(value)]
