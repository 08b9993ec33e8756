"""A Keras model as a chain of blocks, and the chain split into consecutive stages."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import keras

from ....compat.keras_private.functional import graph_of, nodes_in_order
from ....state.trained_model import TrainedModel


@dataclasses.dataclass(frozen=True)
class Block:
    """An indivisible part of the model. Any tensors may cross a cut, also over several cuts."""

    layer: Any
    nodes: list[Any]
    """Of the functional graph: calls of the layer and of the operations after it, in order."""

    @property
    def name(self) -> str:
        """The layer's name."""
        return self.layer.name


@dataclasses.dataclass
class Stage:
    """Consecutive blocks on one device."""

    index: int
    blocks: list[Block]
    inputs: list[int]
    """The ids of the symbolic tensors that come from the model's inputs or from earlier stages."""
    outputs: list[int]
    """The ids of those that later stages or the model's outputs need."""
    devices: list[str] = dataclasses.field(default_factory=list)
    """One for each replica of the pipeline."""

    @property
    def nodes(self) -> list[Any]:
        """The nodes of all blocks, in order."""
        return [node for block in self.blocks for node in block.nodes]

    @property
    def trainable(self) -> list[Any]:
        """The currently trainable variables."""
        return [variable for variable in self.weights if variable.trainable]

    @property
    def _operations(self) -> list[Any]:
        return list({id(node.operation): node.operation for node in self.nodes}.values())

    @property
    def layers(self) -> list[keras.layers.Layer]:
        """The layers that its nodes call, without duplicates."""
        return [each for each in self._operations if isinstance(each, keras.layers.Layer)]

    @functools.cached_property
    def weights(self) -> list[Any]:
        """The Keras variables of its layers, each once, without random state."""
        return list({id(v): v for each in self._operations for v in getattr(each, "weights", [])}.values())

    @functools.cached_property
    def random_states(self) -> list[Any]:
        """The states of the seed generators of its layers, without duplicates."""
        states = {}
        for operation in self._operations:
            weights = {id(variable) for variable in getattr(operation, "weights", [])}
            variables = getattr(operation, "variables", [])
            states.update({id(v): v for v in variables if id(v) not in weights})
        return list(states.values())


class Chain:
    """The blocks of a built Sequential or functional model, in the order of its layers. Owns no variables and no devices."""

    def __init__(self, model: TrainedModel) -> None:
        self.model = model
        graph = graph_of(model)
        if graph is None:
            raise ValueError(_no_graph(model))
        self.graph = graph
        self.input_ids = [id(tensor) for tensor in graph.inputs]
        self.output_ids = [id(tensor) for tensor in graph.outputs]
        self.blocks = _blocks(nodes_in_order(graph))
        if not self.blocks:
            raise ValueError(f"`model` {model.name!r} has no layers to cut into stages: add layers.")
        self.shared = _find_shared(self.blocks)

    def sizes_of(self, partition: Sequence[Any]) -> list[int]:
        """Return the blocks of each stage, of K layer counts or K - 1 names of the first layers of later stages."""
        names = [block.name for block in self.blocks]
        if all(isinstance(part, str) for part in partition):
            unknown = [name for name in partition if name not in names]
            if unknown:
                raise ValueError(f"`partition` names the layer {unknown[0]!r}, which is not one of {names}.")
            edges = [0, *map(names.index, partition), len(names)]
        else:
            edges = list(itertools.accumulate(partition, initial=0))
        if edges != sorted(set(edges)) or edges[-1] != len(names):
            raise ValueError(
                f"`partition` must have layer counts that sum to {len(names)}, or names of layers after the first, in "
                f"the model's order: {names}. Received: {list(partition)}"
            )
        for edge in edges:
            if edge in self.shared:
                raise ValueError(
                    f"`partition` cuts {self.shared[edge]} before layer {names[edge]!r}: put all uses in one stage. "
                    f"Received: {list(partition)}"
                )
        return _differences(edges)

    def groups(self) -> list[int]:
        """Block counts of the smallest parts that a cut may separate (above 1 where layers are shared)."""
        free = [edge for edge in range(1, len(self.blocks)) if edge not in self.shared]
        return _differences([0, *free, len(self.blocks)])

    def check_enough(self, stages: int) -> None:
        """Raise a `ValueError` for more stages than there are blocks to separate."""
        if stages > len(self.blocks):
            raise ValueError(
                f"devices ({stages} stages) must not be more than the layers of model {self.model.name!r} "
                f"({len(self.blocks)}): use fewer devices"
            )
        if stages > len(self.groups()):
            reasons = "; ".join(sorted(set(self.shared.values())))
            raise ValueError(
                f"model {self.model.name!r} can be cut into {len(self.groups())} stages at most, not {stages}: "
                f"{reasons} must stay in one stage. Use fewer devices"
            )

    def cut(self, sizes: Sequence[int]) -> list[Stage]:
        """Return the stages with these numbers of blocks."""
        stages, start = [], 0
        for index, size in enumerate(sizes):
            blocks = self.blocks[start : start + size]
            stages.append(Stage(index, blocks, [id(t) for t in find_taken(blocks)], []))
            start += size
        wanted = [key for stage in stages for key in stage.inputs] + self.output_ids
        for stage in stages:
            made = _find_made(stage.blocks)
            stage.outputs = list(dict.fromkeys(key for key in wanted if key in made))
        return stages

    def find_crossing(self, edge: int) -> list[Any]:
        """Return the symbolic tensors that a cut before block `edge` would send."""
        made = _find_made(self.blocks[:edge])
        needed = {id(t) for t in find_taken(self.blocks[edge:])}.union(self.output_ids)
        return [tensor for key, tensor in made.items() if key in needed]


def _differences(edges: Sequence[int]) -> list[int]:
    return [stop - start for start, stop in itertools.pairwise(edges)]


def _find_made(blocks: Sequence[Block]) -> dict[int, Any]:
    """Return the symbolic outputs of blocks, by their ids."""
    return {id(out): out for block in blocks for node in block.nodes for out in node.outputs}


def find_taken(blocks: Sequence[Block]) -> list[Any]:
    """Return the symbolic tensors that blocks read from outside, without duplicates."""
    needed = {id(t): t for block in blocks for node in block.nodes for t in node.input_tensors}
    made = _find_made(blocks)
    return [tensor for key, tensor in needed.items() if key not in made]


def _blocks(nodes: list[Any]) -> list[Block]:
    """Start a block at the first call of each layer; operations and later calls belong to the previous block."""
    blocks: list[Block] = []
    seen: set[int] = set()
    leading: list[Any] = []
    for node in nodes:
        operation = node.operation
        if isinstance(operation, keras.layers.Layer) and id(operation) not in seen:
            seen.add(id(operation))
            blocks.append(Block(operation, leading + [node]))
            leading = []
        elif blocks:
            blocks[-1].nodes.append(node)
        else:
            leading.append(node)
    return blocks


def _find_shared(blocks: list[Block]) -> dict[int, str]:
    """Describe, for each edge (before block i) that must not be cut, the objects used on both sides."""
    users: dict[int, list[tuple[int, str]]] = {}
    what: dict[int, str] = {}
    for index, block in enumerate(blocks):
        for node in block.nodes:
            layer = node.operation
            if not isinstance(layer, keras.layers.Layer):
                continue
            users.setdefault(id(layer), []).append((index, layer.name))
            what[id(layer)] = f"the shared layer {layer.name!r}"
            for variable in layer.weights:
                users.setdefault(id(variable), []).append((index, layer.name))
    reasons: dict[int, str] = {}
    for key, uses in users.items():
        places = [index for index, _ in uses]
        if key in what and not blocks[places[0]].layer.weights:
            continue  # it has no state, so both sides may use it
        names = ", ".join(sorted({repr(name) for _, name in uses}))
        text = what.get(key, f"the variables shared by the layers {names}")
        for edge in range(min(places) + 1, max(places) + 1):
            reasons.setdefault(edge, text)
    return reasons


def _no_graph(model: TrainedModel) -> str:
    kind = type(model).__name__
    if not model.built:
        return f"model {model.name!r} cannot be cut into stages before it is built: add an Input"
    return (
        f"model {model.name!r} ({kind}) cannot be cut into stages: its call is Python code, not a graph of layers. "
        f"Write it as a Sequential or functional model; subclassed blocks may be layers in it"
    )
