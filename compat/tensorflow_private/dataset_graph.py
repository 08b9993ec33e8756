"""The graph of a `tf.data` pipeline, and a checksum of the graph that is the same in every process."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from ..upstream_places import data_service_pb2, op_def_registry, structure
from .pipelines import PYTHON_CALLS, STATE_PREFIXES, dataset_graph, datasets_of, python_functions_of

_MOST_HELD = 2**26  # bytes
# Attributes that TensorFlow numbers or draws anew in every process, or that depend on the machine.
_IGNORED_ATTRIBUTES = frozenset(
    ("metadata", "shared_name", "container", "debug_name", "allowed_devices", "config", "config_proto")
    + ("executor_type", "seed", "seed2", "token")
)
# Of datasets: "filename" is that of a cache, and "path" that of a snapshot.
_IGNORED_INPUTS = frozenset(("seed", "seed2", "num_parallel_calls", "filename", "path"))


def find_held_data(dataset: tf.data.Dataset) -> list[Any]:
    """Return the tensors, also ragged and sparse ones, that the sources of a pipeline hold, without those in functions."""
    own: Any = getattr(dataset, "_tensors", None)
    if own is None:
        return [each for part in dataset._inputs() for each in find_held_data(part)]
    spec: Any = dataset._structure
    if type(dataset).__name__ == "_TensorSliceDataset":
        rows = own[0].shape[0]
        spec = tf.nest.map_structure(lambda leaf: leaf._batch(rows), spec)
    return tf.nest.flatten(structure.from_compatible_tensor_list(spec, own))


def read_dataset(x: Any) -> Any:
    """Return the `tf.data.Dataset` that `x` is, or that TensorFlow shards when it distributes `x`; else None."""
    off = tf.data.experimental.AutoShardPolicy.OFF
    if isinstance(x, tf.data.Dataset):
        return x
    given: Any = getattr(x, "_original_dataset", None)
    return (
        None if given is None or given.options().experimental_distribute.auto_shard_policy == off else given
    )


def numbers_of(dataset: tf.data.Dataset, *names: str) -> list[list[int]]:
    """Return these attributes of each transformation of a pipeline that has all of them, without those in functions."""
    found = [[tf.get_static_value(getattr(each, n, None)) for n in names] for each in datasets_of(dataset)]
    return [[int(number) for number in numbers] for numbers in found if not any(n is None for n in numbers)]


def shares_service(dataset: tf.data.Dataset) -> bool:
    """Return whether a pipeline reads from a tf.data service that gives each reader a part of the elements."""
    for each in datasets_of(dataset):
        mode, job = (
            tf.get_static_value(getattr(each, name, None)) for name in ("_processing_mode", "_job_name")
        )
        if mode is not None:
            policy = data_service_pb2.ProcessingModeDef.FromString(mode).sharding_policy
            return bool(job) or policy == data_service_pb2.ProcessingModeDef.DYNAMIC
    return False


def pipeline_checksum(dataset: tf.data.Dataset, of_python: Callable[[Any], str]) -> str | None:
    """Return a checksum of the graph of a pipeline; None where it has no graph, or holds much data.

    It depends on operations, their order, constants and functions. It does not depend on names, seeds, the states of
    random generators, numbers of threads or places of caches. `of_python` gives the text that stands for a Python function.
    No element is drawn.
    """
    parts = tf.nest.flatten(find_held_data(dataset), expand_composites=True)
    numbers = [part for part in parts if part.dtype != tf.variant]
    if sum(part.shape.num_elements() * part.dtype.size for part in numbers) > _MOST_HELD:
        return None
    try:
        return _Digests(dataset_graph(dataset), of_python).of_graph().hex()
    except (tf.errors.OpError, ValueError):
        return None


class _Digests:
    """Digests of the nodes of one graph, each made of its operation, its attributes and the digests of its inputs."""

    def __init__(self, graph: Any, of_python: Callable[[Any], str]) -> None:
        self._graph, self._of_python = graph, of_python
        self._functions = {function.signature.name: function for function in graph.library.function}
        self._of_functions: dict[str, bytes] = {}
        self._operations: dict[str, frozenset[str]] = {}

    def of_graph(self) -> bytes:
        """Return the digest of the results of the graph."""
        # The nodes that must run before a source of a transformation that draws from a random generator: its variables.
        sources = {s for node in self._graph.node if self._draws(node) for s in node.input}
        before = [name for node in self._graph.node if node.name in sources for name in node.input]
        self._states = {name[1:] for name in before if name[0] == "^"}
        known = self._of_nodes(self._graph.node, {})
        return _digest(*(known[node.name] for node in self._graph.node if node.op == "_Retval"))

    def _draws(self, node: Any) -> bool:
        operations = (operation for name in _find_called(node) for operation in self._operations_of(name))
        return any(operation.startswith(STATE_PREFIXES) for operation in operations)

    def _operations_of(self, name: str) -> frozenset[str]:
        """Return the operations of a function and of the functions that it calls."""
        if name not in self._operations:
            self._operations[name] = frozenset()  # a function may call itself
            nodes = self._functions[name].node_def if name in self._functions else ()
            inner = (self._operations_of(called) for node in nodes for called in _find_called(node))
            self._operations[name] = frozenset(node.op for node in nodes).union(*inner)
        return self._operations[name]

    def _of_function(self, name: str) -> bytes:
        """Return the digest of a function's results and effects; its own name does not count."""
        function = self._functions.get(name)
        if function is None:
            return name.encode()
        if name not in self._of_functions:
            self._of_functions[name] = b"itself"
            arguments = enumerate(function.signature.input_arg)
            known = {each.name: _digest(b"argument %d %d" % (i, each.type)) for i, each in arguments}
            known = self._of_nodes(function.node_def, known)
            returned = (function.ret[each.name].partition(":") for each in function.signature.output_arg)
            effects = sorted(known[node] for node in function.control_ret.values())
            parts = [part for node, _, port in returned for part in (known[node], port.encode())]
            self._of_functions[name] = _digest(*parts, b"effects", *effects)
        return self._of_functions[name]

    def _of_nodes(self, nodes: Iterable[Any], known: dict[str, bytes]) -> dict[str, bytes]:
        """Add the digests of nodes to the known ones. Nodes mostly come after their inputs."""
        waiting = list(nodes)
        while waiting:
            later = []
            for node in waiting:
                if all(_source(name) in known for name in node.input):
                    known[node.name] = self._of_node(node, known)
                else:
                    later.append(node)
            if len(later) == len(waiting):
                raise ValueError(f"The graph has a cycle at {later[0].name}.")
            waiting = later
        return known

    def _of_node(self, node: Any, known: Mapping[str, bytes]) -> bytes:
        if node.op == "AssignVariableOp" and node.name in self._states:
            return _digest(b"a state")
        parts = [self._of_function(node.op)]
        for name in sorted(node.attr):
            if name not in _IGNORED_ATTRIBUTES and not name.startswith("_"):
                parts += [name.encode(), self._of_attribute(node.attr[name])]
        if node.op in PYTHON_CALLS:
            functions = python_functions_of(node.attr["token"].s.decode())
            parts += [self._of_python(function).encode() for function in functions]
        data = [name for name in node.input if name[0] != "^"]
        ignored = _find_ignored_inputs(node)
        for number, name in enumerate(data):
            if number not in ignored:
                parts += [b"input %d" % number, known[_source(name)], name.partition(":")[2].encode()]
        return _digest(*parts, b"after", *sorted(known[name[1:]] for name in node.input if name[0] == "^"))

    def _of_attribute(self, value: Any) -> bytes:
        kind = value.WhichOneof("value")
        if kind == "func":
            return self._of_function(value.func.name)
        if kind == "list" and value.list.func:
            return _digest(*(self._of_function(each.name) for each in value.list.func))
        if kind == "tensor" and value.tensor.resource_handle_val:
            return _digest(*(each.maybe_type_name.encode() for each in value.tensor.resource_handle_val))
        return value.SerializeToString(deterministic=True)


def _digest(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.digest()


def _source(name: str) -> str:
    """Return the node that an input comes from."""
    return name.lstrip("^").partition(":")[0]


def _find_called(node: Any) -> Iterator[str]:
    """Yield the functions that an operation calls."""
    yield node.op
    for value in node.attr.values():
        yield from (each.name for each in ([value.func] if value.HasField("func") else value.list.func))


def _find_ignored_inputs(node: Any) -> set[int]:
    """Return the positions of a dataset's inputs that do not affect its elements."""
    definition = op_def_registry.get(node.op) if "Dataset" in node.op else None
    found, number = set(), 0
    for argument in definition.input_arg if definition is not None else ():
        if argument.name in _IGNORED_INPUTS:
            found.add(number)
        if argument.number_attr:
            number += node.attr[argument.number_attr].i
        else:
            number += len(node.attr[argument.type_list_attr].list.type) if argument.type_list_attr else 1
    return found
