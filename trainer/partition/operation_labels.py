"""The labels for one operation: by its rule, on a replica's own samples, or on whole inputs."""

from typing import Any

import tensorflow as tf

from ...compat.tensorflow_graphs.one_device import line_of_user
from .labels import OWN, PARTIAL_SUM, REPLICATED, STATISTIC, Label, is_partial, is_sharded, needs_collective
from .program import NotPartitioned
from .rules import PARTIAL_MEAN, RULES, Ruling, View
from .rules.lists import EMPTY
from .rules.random import STATEFUL, STATELESS

READS = ("ReadVariableOp", "VarIsInitializedOp")
_SCATTERS = "Add Sub Mul Div Min Max Update NdAdd NdSub NdMin NdMax NdUpdate"
WRITES = (
    *("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "ResourceStridedSliceAssign"),
    *(f"ResourceScatter{kind}" for kind in _SCATTERS.split()),
)
"""The first input is a variable, of which each replica writes its copy; the others are whole."""
_MAKES_SAMPLES = frozenset(
    ["Fill", "BroadcastTo", "Tile", "TensorListReserve", "EmptyTensorList", "OptionalNone", "RandomShuffle"]
    + [*STATEFUL, *STATELESS]
)
_TAKES_POSITIONS = """
    Identity IdentityN StopGradient Cast Reshape ExpandDims Squeeze Transpose StridedSlice GatherV2 GatherNd Shape ShapeN
    Size Rank ZerosLike OnesLike OptionalFromValue TensorListPushBack TensorListSetItem
    UnsortedSegmentSum UnsortedSegmentMax UnsortedSegmentMin
"""  # operations that accept positions relative to this replica's first sample; others get positions in the batch
_ADDS_UP = ("AddN", "AddV2", "Identity")
_HARMLESS = """
    Assert Empty PrintV2 StringFormat OptionalFromValue OptionalGetValue OptionalNone VariableShape
    LookupTableExportV2 LookupTableSizeV2
"""

_CALLS_PYTHON = ("PyFunc", "EagerPyFunc")
_DRAWS_FROM_STATE = ("RngReadAndSkip", "RngSkip")


def has_effects(op: tf.Operation) -> bool:
    """Return whether an operation does more than reading, drawing, checking and printing."""
    return bool(op.op_def.is_stateful) and op.type not in (*READS, *RULES, *_HARMLESS.split())


def calls_python(graph: Any) -> bool:
    """Return whether a graph, or a function in it, runs Python code that may have effects."""
    found = graph.as_graph_def()
    parts = [found.node, *(function.node_def for function in found.library.function)]
    return any(node.op in _CALLS_PYTHON for part in parts for node in part)


def describe_effects(op: tf.Operation, place: str = "") -> str:
    """Return which line of user code has effects, in a `place`, and what to do instead."""
    line, code = line_of_user(op)
    what, instead = "has effects", "compute it in the input pipeline or in a callback"
    if op.type in _CALLS_PYTHON:
        what = "runs Python code, which may have effects"
        instead = f"pass `stateful=False` to `tf.numpy_function` if it has none, or {instead}"
    elif op.type in _DRAWS_FROM_STATE:
        what, instead = (
            "draws from a `tf.random.Generator`",
            "use `keras.random` with a `keras.random.SeedGenerator`",
        )
    elif op.type in WRITES:
        instead = "write outside of it, for example `variable.assign(tf.where(condition, new, variable))`"
    where = f" in {line}" if line else f" ({op.name})"
    return f"{op.type}{where}{f', `{code}`,' if code else ''} {what}{place}: {instead}"


def labels_of(op: tf.Operation, view: View, replicated: bool, is_local: bool) -> Ruling:
    """Return the labels that an operation needs of its inputs, and those of its outputs.

    With `replicated` it gets whole inputs, regardless of its rule. With `is_local` it computes statistics of a replica's own
    samples. Raise `NotPartitioned` where it has effects, or lists of tensors, and no rule.
    """
    # A tape sums the gradients of several uses of a layer's output outside the layer's name scope.
    is_local = is_local or (op.type in _ADDS_UP and all(label == STATISTIC for label in view.labels))
    if op.type in READS:
        return [None], [view.labels[0] if op.type == "ReadVariableOp" else REPLICATED]
    if op.type in WRITES:
        if view.labels[0] == PARTIAL_SUM:
            raise NotPartitioned(f"{op.name} writes a variable that is summed when it is read")
        return [None, *[REPLICATED] * (len(op.inputs) - 1)], []
    lists = any(tensor.dtype == tf.variant for tensor in [*op.inputs, *op.outputs])
    if replicated or (lists and not view.mesh.of_batch):
        return view.gather()
    if op.type == "Assert":  # it may print this replica's values
        return [REPLICATED, *[None] * (len(view.labels) - 1)], []
    rule = RULES.get(op.type)
    alike = all(label in (REPLICATED, EMPTY) for label in view.labels)
    if not alike and is_local:
        return _local_labels(op, view)
    if rule is not None:
        positions = op.type not in _TAKES_POSITIONS.split() and any(label.counts for label in view.labels)
        return view.gather() if positions or (alike and op.type not in _MAKES_SAMPLES) else rule(view)
    if not alike and lists:
        if any(label != view.labels[0] for label in view.labels):
            raise NotPartitioned(f"there is no rule for {op.type} ({op.name})")
        return [None] * len(view.labels), [view.labels[0]] * len(op.outputs)
    if has_effects(op):
        raise NotPartitioned(describe_effects(op))
    return view.gather()


def _local_labels(op: tf.Operation, view: View) -> Ruling:
    """Return the labels of an operation on this replica's samples alone."""
    given = list(view.labels)
    view.labels = [REPLICATED if label == STATISTIC else label for label in given]
    wants, made = RULES[op.type](view) if op.type in RULES else view.gather()
    for number, (label, want) in enumerate(zip(given, wants)):
        if label == STATISTIC or (is_partial(label) and want is not None):
            wants[number] = None
        elif is_sharded(label) and want is not None and needs_collective(label, want):
            raise NotPartitioned(f"{op.name} mixes samples of a replica in a way that no rule covers")
    computed = STATISTIC in given
    return wants, [
        STATISTIC if not is_sharded(label) and (computed or label != REPLICATED) else label for label in made
    ]


def settle_label(label: Label) -> Label:
    """Return the label of an output after the local factor that makes it a value of the global batch."""
    if label in (PARTIAL_MEAN, OWN):
        return PARTIAL_SUM
    return REPLICATED if label.kind == "sizes" and label.chosen is None else label
