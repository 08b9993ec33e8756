"""The effect of the transformations of a `tf.data.Dataset` on its position."""

import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from ..patches import wrap
from ..tensorflow_graphs.graphs import draws, nodes_of
from ..upstream_places import DatasetV2, py_funcs

PYTHON_CALLS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
STATE_PREFIXES = (
    "Assign",
    "Rng",
    "StatefulUniform",
    "StatefulStandard",
    "StatefulTruncated",
    "StatefulRandom",
)
# Transformations that start their inputs with their first element, and once in a pass.
_STARTS_ONCE = (
    "Map",
    "Filter",
    "Batch",
    "Padded",
    "Prefetch",
    "Take",
    "Skip",
    "Options",
    "Shuffle",
    "Shard",
    "Zip",
    "Unbatch",
)


class Transformation(NamedTuple):
    """One step of a pipeline, with the operations of all of its functions."""

    name: str
    operations: frozenset[str]
    tokens: tuple[str, ...]  # of the Python functions that it calls, in creation order
    variables: tuple[tf.Variable, ...]  # that its functions use
    unseeded: bool  # it draws from a seed that differs in every process
    over_shuffle: bool  # an earlier transformation changes the order in every pass
    in_any_order: bool  # it, or a pipeline in its functions, was given deterministic=False

    @property
    def python(self) -> list[Callable[..., Any]]:
        """The Python functions that it calls, in creation order."""
        called = [each for token in self.tokens for each in python_functions_of(token)]
        return list({id(function): function for function in called}.values())

    @property
    def caches(self) -> bool:
        """Whether it caches the elements of the first pass."""
        return self.name == "CacheDataset" or any(name.startswith("CacheDataset") for name in self.operations)

    @property
    def keeps_state(self) -> bool:
        """Whether it draws from a generator or writes a variable that outlives a pass."""
        return any(name.startswith(STATE_PREFIXES) for name in self.operations)

    @property
    def forgets_order(self) -> bool:
        """Whether the checkpoint of an iterator lacks state, except shuffles, that the order of the next pass depends on."""
        return self.name == "_RandomDataset"

    @property
    def draws(self) -> bool:
        """Whether it draws from random operations that restart with every pass."""
        return any(map(draws, self.operations))

    @property
    def restarts_shuffles(self) -> bool:
        """Whether it may start a shuffle later than with its first element, or more than once in a pass."""
        name = self.name.removeprefix("_").removeprefix("Parallel")
        later = self.over_shuffle and not name.startswith(_STARTS_ONCE)
        return later or any(_gives_new_order(name) for name in self.operations)

    @property
    def in_parallel(self) -> bool:
        """Whether its functions run in an order that differs from run to run."""
        return "Parallel" in self.name


def datasets_of(dataset: Any) -> Iterator[Any]:
    """Yield a pipeline's dataset of each transformation, the last first, without those in functions."""
    yield dataset
    for each in dataset._inputs():
        yield from datasets_of(each)


def transformations(dataset: Any) -> Iterator[Transformation]:
    """Yield every step of a pipeline, the last first. Nothing is run."""
    nodes, variables = [], []
    for function in dataset._functions():
        graph = function.function.graph
        nodes += nodes_of(graph.as_graph_def())
        variables += graph.variables
    # In creation order: the order of a graph's functions differs in every process.
    tokens = {node.attr["token"].s.decode() for node in nodes if node.op in PYTHON_CALLS}
    seeds = [tf.get_static_value(getattr(dataset, name, None)) for name in ("_seed", "_seed2")]
    unseeded = type(dataset).__name__ == "_ShuffleDataset" and seeds == [0, 0]
    unseeded |= any(draws(node.op) and node.attr["seed"].i == node.attr["seed2"].i == 0 for node in nodes)
    before = [each for part in dataset._inputs() for each in transformations(part)]
    yield Transformation(
        type(dataset).__name__,
        frozenset(node.op for node in nodes),
        tuple(sorted(tokens, key=lambda token: (len(token), token))),
        tuple(variables),
        unseeded,
        over_shuffle=any(_gives_new_order(each.name) for each in before),
        in_any_order=getattr(dataset, "_deterministic", "") == "false"
        or any(node.attr["deterministic"].s == b"false" for node in [*nodes, *_interleaves(dataset)]),
    )
    yield from before


def in_any_order(dataset: tf.data.Dataset) -> bool:
    """Return whether the order of elements differs in every run: `deterministic=False` in options or a transformation."""
    return dataset.options().deterministic is False or any(
        step.in_any_order for step in transformations(dataset)
    )


def dataset_graph(dataset: tf.data.Dataset) -> Any:
    """Return the GraphDef of a pipeline, without outside state; raise a tf.errors.OpError or ValueError if it has none."""
    policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    graph = dataset._as_serialized_graph(external_state_policy=policy).numpy()
    return tf.compat.v1.GraphDef.FromString(graph)


def _interleaves(dataset: Any) -> list[Any]:
    """Return the parallel `interleave` operations of a pipeline that ends in one: its object does not keep their order."""
    if type(dataset).__name__ != "_ParallelInterleaveDataset":
        return []
    try:
        graph = dataset_graph(dataset)
    except (tf.errors.OpError, ValueError):
        return []
    return [node for node in graph.node if node.op.startswith("ParallelInterleave")]


def _gives_new_order(name: str) -> bool:
    return name.lstrip("_").startswith(("ShuffleDataset", "RandomDataset"))


def python_functions_of(token: str) -> Iterator[Callable[..., Any]]:
    """Yield the user's functions behind an operation that calls Python, which has the attribute `token`."""
    function = py_funcs.get(token)
    function = getattr(function, "_func", function)  # of an EagerFunc
    if function is None:
        return
    if not function.__module__.startswith("tensorflow."):
        yield function
    for cell in getattr(function, "__closure__", None) or ():
        owner: Any = getattr(cell.cell_contents, "__self__", None)
        if isinstance(owner, DatasetV2._GeneratorState):
            yield owner._generator


_WATCHES: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def watch_python_calls(tokens: list[str], watch: Any) -> None:
    """Make the calls of these Python functions through `watch.note_call(token, call)`, as long as `watch` exists."""
    _WATCHES.update(dict.fromkeys(tokens, watch))
    wrap("__call__", _call_watched)


def _call_watched(original: Callable[..., Any], registry: Any, token: str, *arguments: Any) -> Any:
    watch = _WATCHES.get(token)
    if watch is None:
        return original(registry, token, *arguments)
    return watch.note_call(token, lambda: original(registry, token, *arguments))
