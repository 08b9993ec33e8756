"""The labels for one operation: by its row, on a replica's own samples, or on whole inputs."""

from typing import Any

import tensorflow as tf

from ...compat.tensorflow_graphs.one_device import line_of_user
from .labels import EMPTY, OWN, PARTIAL_MEAN, PARTIAL_SUM, REPLICATED, STATISTIC, Label, needs_collective
from .operations import NO_ROW, ROWS, Ruling, View, row_of
from .program import Copy, NotPartitioned, Program


def has_effects(op: tf.Operation) -> bool:
    """Return whether an operation does more than reading, drawing, checking and printing."""
    row = row_of(op)
    return bool(op.op_def.is_stateful) and (row.writes or not (row.has_rule or row.harmless))


def calls_python(graph: Any) -> bool:
    """Return whether a graph, or a function in it, runs Python code that may have effects."""
    found = graph.as_graph_def()
    parts = [found.node, *(function.node_def for function in found.library.function)]
    return any(ROWS.get(node.op, NO_ROW).calls_python for part in parts for node in part)


def describe_effects(op: tf.Operation, place: str = "") -> str:
    """Return which line of user code has effects, in a `place`, and what to do instead."""
    line, code = line_of_user(op)
    default = ("has effects", "compute it in the input pipeline or in a callback")
    what, instead = row_of(op).effect or default
    where = f" in {line}" if line else f" ({op.name})"
    return f"{op.type}{where}{f', `{code}`,' if code else ''} {what}{place}: {instead}"


def describe_need(have: Label, cause: tf.Operation | None) -> str:
    """Return why an operation, or a result of the step, needs more than a replica's part of a tensor with this label."""
    if have.is_partial and have != PARTIAL_SUM:
        return "an extreme over all samples is needed"
    if have.is_sizes or have.is_count:
        return "the number of chosen samples is needed"
    if have == STATISTIC:
        return "batch statistics are averaged"
    if not have.is_sharded:
        return "a sum over all samples is needed before the step goes on" if cause is not None else ""
    return "a result has a value for each sample" if cause is None else row_of(cause).reason


def find_labels(view: View, replicated: bool, is_local: bool, inside: bool, in_order: bool) -> Ruling:
    """Return the labels that an operation needs of its inputs, and those of its outputs.

    With `replicated` it gets whole inputs, regardless of its row. With `is_local` it computes statistics of a replica's own
    samples; `inside` of a branch or a loop there are no collectives. Raise `NotPartitioned` where it has effects, or lists
    of tensors, and no rule.
    """
    op, row = view.op, row_of(view.op)
    # A tape sums the gradients of several uses of a layer's output outside the layer's name scope.
    is_local = is_local or (row.adds and all(label == STATISTIC for label in view.labels))
    if row.reads or row.writes:
        return row.find_ruling(view)
    lists = any(tensor.dtype == tf.variant for tensor in [*op.inputs, *op.outputs])
    if replicated or (lists and not view.mesh.of_batch):
        # A body may have read a sum that replicas store, and what is added to a part of it is a part.
        adds = row.adds_up and PARTIAL_SUM in view.labels
        return row.find_ruling(view) if adds else _label_replicated(view, inside, in_order)
    alike = all(label in (REPLICATED, EMPTY) for label in view.labels)
    if not alike and is_local:
        return _label_locally(view)
    if row.has_rule:
        needed = not alike or row.fills or row.harmless
        return row.find_ruling(view) if needed else view.gather()
    if not alike and lists:
        if any(label != view.labels[0] for label in view.labels):
            raise NotPartitioned(f"there is no rule for {op.type} ({op.name})")
        return [None] * len(view.labels), [view.labels[0]] * len(op.outputs)
    if has_effects(op):
        raise NotPartitioned(describe_effects(op))
    return view.gather()


def _label_replicated(view: View, inside: bool, in_order: bool) -> Ruling:
    """Return whole inputs, and outputs that are the same on every replica, also of a draw.

    A draw with a seed that all replicas run in the same order has the same numbers; another has those of the first replica.
    """
    op, row = view.op, row_of(view.op)
    seeded = row.draws and (op.get_attr("seed") or op.get_attr("seed2"))
    if not row.draws or (inside and in_order and seeded):
        return view.gather()
    if inside:
        raise NotPartitioned(describe_effects(op, " in a branch or a loop"))
    return view.gather()[0], [OWN] * len(op.outputs)


def find_shared_draw(program: Program) -> tf.Operation | None:
    """Return a draw in a body whose numbers are the same on every replica because of its seed."""
    for node in program.nodes:
        if isinstance(node, Copy):
            if row_of(node.op).draws and not any(label.is_sharded for label in node.made[0]):
                return node.op
            inner = filter(None, map(find_shared_draw, node.bodies.values()))
            if found := next(inner, None):
                return found
    return None


def _label_locally(view: View) -> Ruling:
    """Return the labels of an operation on this replica's samples alone."""
    given = list(view.labels)
    view.labels = [REPLICATED if label == STATISTIC else label for label in given]
    wants, made = row_of(view.op).find_ruling(view)
    for number, (label, want) in enumerate(zip(given, wants)):
        if label == STATISTIC or (label.is_partial and want is not None):
            wants[number] = None
        elif label.is_sharded and want is not None and needs_collective(label, want):
            raise NotPartitioned(f"{view.op.name} mixes samples of a replica in a way that no rule covers")
    computed = STATISTIC in given
    return wants, [
        STATISTIC if not label.is_sharded and (computed or label != REPLICATED) else label for label in made
    ]


def settle_label(label: Label) -> Label:
    """Return the label of an output after the local factor that makes it a value of the global batch."""
    if label in (PARTIAL_MEAN, OWN):
        return PARTIAL_SUM
    return REPLICATED if label.is_sizes and label.chosen is None else label
