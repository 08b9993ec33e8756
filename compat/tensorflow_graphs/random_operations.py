"""Operations of a graph that draw random numbers."""

from __future__ import annotations

from typing import Any

from tensorflow.python.framework import op_def_registry

_DRAWS = [
    "Multinomial",
    "ParameterizedTruncatedNormal",
    "Random",
    "SampleDistorted",
    "StatelessMultinomial",
    "StatelessParameterized",
    "StatelessRandom",
    "StatelessSample",
    "StatelessShuffle",
    "StatelessTruncatedNormal",
    "TruncatedNormal",
]  # how their names begin
_NO_DRAW = ("StatelessRandomGetAlg", "StatelessRandomGetKeyCounter")


def _draws(operation: str) -> bool:
    begins = operation.startswith(tuple(_DRAWS)) and not operation.startswith(_NO_DRAW)
    return begins or operation.endswith("CandidateSampler")


def _is_stateful(operation: str) -> bool:
    definition = op_def_registry.get(operation)
    return definition is not None and definition.is_stateful


def drawing_operations(graph: Any) -> list[str]:
    """The names of a graph's operations, its functions included, that draw random numbers from internal state."""
    definition = graph.as_graph_def(add_shapes=False)
    nodes = [*definition.node, *(node for each in definition.library.function for node in each.node_def)]
    return sorted({node.name for node in nodes if _draws(node.op) and _is_stateful(node.op)})
