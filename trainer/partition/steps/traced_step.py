"""A step with user code: traced once as on a single device, and run partitioned on every replica."""

import functools
import itertools
from typing import Any

import keras
import tensorflow as tf

from ....compat.keras_private.variables import is_read_together, raw_value, sums_on_read
from ....compat.tensorflow_graphs.made_operations import MadeOperations, stand_for
from ....compat.tensorflow_graphs.one_device import find_distributed_variable, trace_on_one_device
from ....compat.tensorflow_private.strategies import pretend_replicas
from ....compat.tensorflow_private.valueless_variables import read_unrecorded
from ....distribute.mesh import mesh_of
from ....distribute.rematerialized_calls import calls_in
from ....distribute.replicas import bytes_of_packs, local_replica_index, shares_variables
from ....distribute.sharding.sharded import SHARDABLE, level_of
from ....distribute.sharding.sharded_value import ShardedValue, TensorInPlace, layout_of, see_through
from ....distribute.step_context import NOT_AGGREGATED, StepContext, WeightTotals, step_scope, this_step
from ....optimizers.building import ensure_built
from ....optimizers.update_rules.parts import aggregates_itself, gradient_layouts
from ...inputs.batch import all_leaves, sample_count
from ...inputs.input_checks import check_combined_samples, check_combined_values
from ...step.collected_writes import CollectedWrites
from ..composite_arrays import RaggedArray, SparseArray
from ..conversions import Replica
from ..labels import LOGS, MEAN_OF_STATISTICS, PARTIAL_SUM, SAMPLES, Label, Labels
from ..memory import save_memory
from ..needed_operations import APPLY
from ..operation_labels import calls_python
from ..operations import row_of
from ..partition_graph import partition_graph, read_inputs
from ..program import BATCH, Copy, MeshAxis, NotPartitioned, Program, find_received
from ..rebuild import rebuild_step
from .batch_tensors import describe_unsupported, find_composite, find_depths, tensors_of, with_tensors
from .explain import StepExplanation, explain_program
from .results import numbers_in, own_results
from .step import OptimizerCall, Step, assign, hand_over, labels_of_layout
from .step_collectives import run_with_collectives
from .trace_errors import user_errors


class TracedStep:
    """One step for global batches of a spec; with `compiles` XLA compiles the computations between collectives.

    Raises `NotPartitioned` where it cannot be partitioned. It is traced outside the current graph.
    """

    def __init__(self, step: Step, spec: Any, compiles: bool = False) -> None:
        self._step, self._spec, self._compiles = step, spec, compiles
        self._calls: list[OptimizerCall] = []
        self._mesh = mesh_of(step.strategy)
        self._of_state = None if level_of(step.strategy) is None else self._mesh
        self._result: Any = {}
        self._variables: list[keras.Variable] = []
        self.attention: set[Any] = set()  # see `StepContext`
        for path, leaf in all_leaves(spec):
            if (reason := describe_unsupported(path, leaf)) is not None:
                raise NotPartitioned(reason)
        leaves, arrays = tensors_of(spec), find_composite(spec)
        fixed = {array.tensors[-1] for array in arrays if isinstance(array, SparseArray)}
        specs = [
            each
            if number in fixed or not each.shape.rank
            else tf.TensorSpec([None, *each.shape[1:]], each.dtype)
            for number, each in enumerate(leaves)
        ]
        self._statistics = MadeOperations()
        graph = trace_on_one_device(self._trace, specs, for_xla=compiles)
        shares = shares_variables(step.strategy)
        self._wanted = [
            PARTIAL_SUM if sums_on_read(raw_value(v)) and not shares else _labels_written(v)
            for v in self._variables
        ]
        self._results = len(graph.outputs) - len(self._variables)
        try:
            self.program: Program = partition_graph(
                graph,
                len(leaves),
                [step.exits] * self._results + self._wanted,
                lambda handle: None if shares else _contents(handle, len(self._mesh.shape)),
                [call.find_wanted_labels() for call in self._calls],
                self._statistics.__contains__,
                [BATCH, *map(MeshAxis, self._mesh.shape[1:])],
                arrays,
                self._ragged,
            )
            self._written = _find_written(self.program)
        except NotPartitioned as error:
            error.calls_python = calls_python(graph)
            raise
        in_packs = isinstance(step.strategy, SHARDABLE) and not compiles
        save_memory(self.program, calls_in(graph), bytes_of_packs(step.strategy) if in_packs else 0)
        self._received = find_received(self.program)
        self._read_inputs = read_inputs(graph, len(leaves)) or range(len(leaves))

    def _trace(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        batch = with_tensors(self._spec, tensors)
        size = sample_count(batch) if any(tensor.shape.rank != 0 for tensor in tensors) else 1
        totals = WeightTotals() if self._step.notes_weights else None
        step = StepContext(0, 1, size, size, totals=totals, in_xla=self._compiles, take_gradients=self._take)
        step.builds_under, step.attention = self._step.strategy, self.attention
        step.notes[NOT_AGGREGATED] = _aggregates_itself
        seen = functools.partial(self._stand_in_for, tf.compat.v1.get_default_graph())
        with step_scope(step), pretend_replicas(1), see_through(seen), CollectedWrites() as writes:
            step.writes = writes
            with self._statistics.of_calls([*filter(has_own_statistics, self._step.layers)]):
                with user_errors():
                    result = self._step.fn(batch)
            whole = {SAMPLES: tf.SparseTensor, LOGS: tf.RaggedTensor}.get(self._step.exits)
            if whole and any(isinstance(leaf, whole) for leaf in tf.nest.flatten(result)):
                raise NotPartitioned(f"one of its results is a `tf.{whole.__name__}`")
            with user_errors():
                numbers = numbers_in(result)  # can be variables that the step has assigned
        arrays = find_composite([*map(tf.type_spec_from_value, numbers)])
        self._ragged = [array for array in arrays if isinstance(array, RaggedArray)]
        self._result = result
        self._variables = [variable for variable, _ in writes.items()]
        return [*tensors_of(numbers), *(value for _, value in writes.items())]

    def _stand_in_for(self, graph: Any, weight: ShardedValue) -> TensorInPlace:
        """Return the stand-in for a sharded weight that the step reads, outside branches and loops."""
        with graph.as_default(), tf.control_dependencies(None):
            return TensorInPlace(weight.key, read_unrecorded(weight.traced), weight)

    def _take(self, optimizer: Any, pairs: Any) -> None:
        pairs = list(pairs)
        ensure_built(optimizer, [v for _, v in pairs])
        call = OptimizerCall.of(optimizer, pairs, functools.partial(gradient_layouts, self._of_state))
        tensors: list[Any] = []
        for gradient, _ in call.pairs:
            slices = isinstance(gradient, tf.IndexedSlices)
            tensors += [gradient.values, gradient.indices] if slices else [gradient]
        tensors += [*(value for _, value in call.written), call.weight]
        this_step().writes.forget([variable for variable, _ in call.written])
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors if tensor is not None]
        if tensors:
            stand_for(tf.raw_ops.IdentityN(input=tensors)[0].op, APPLY, len(self._calls))
        self._calls.append(call)

    def explain(self, samples: int) -> StepExplanation:
        """Return the collectives of a step on a batch of this many samples."""
        results = keras.tree.flatten_with_path(self._result)
        names = ["/".join(map(str, path)) or "result" for path, leaf in results for _ in tensors_of(leaf)]
        names = names[: self._results] + [v.path for v in self._variables]
        counts = [len(call.pairs) for call in self._calls]
        return explain_program(self.program, samples, self._mesh, names, counts)

    def check_samples(self, batch: Any) -> list[Any]:
        """Return checks that arrays whose samples the step combines one by one have the same number of them.

        Raise `NotPartitioned` where they certainly have not, or one of them has a single sample.
        """
        paths = {id(leaf): path for path, leaf in all_leaves(batch)}
        leaves = [leaf for leaf in tf.nest.flatten(batch) for _ in tensors_of(leaf)]
        checks = []
        for group in self.program.equal:
            arrays = [(paths[id(leaves[number])], leaves[number]) for number in group]
            static = {leaf.shape[0] for _, leaf in arrays}
            if len(static - {None}) > 1 or static == {None, 1}:
                names = " and ".join(f"`{path}`" for path, _ in arrays)
                error = NotPartitioned(f"it combines {names}, which have different numbers of samples")
                error.calls_python = False  # else it would not have been partitioned
                raise error
            checks += check_combined_samples(arrays)
        return checks

    def read_part(self, batch: Any) -> Any:
        """Return the batch with None instead of the arrays that the step does not read: their sizes do not matter."""
        numbers, read = itertools.count(), set(self._read_inputs)

        def is_read(leaf: Any) -> bool:
            return not read.isdisjoint([next(numbers) for _ in tensors_of(leaf)])

        return tf.nest.map_structure(lambda leaf: leaf if is_read(leaf) else None, batch)

    def __call__(self, data: Any) -> Any:
        """Run the step on a replica's samples; return its results, with the labels of `Step.exits`.

        Outputs of `predict_step` that are the same on every replica are taken from the first replica with samples.

        Context: replica, inside a step that collects writes.
        """
        step = this_step()
        leaves, arrays = list[Any](), list[tuple[Any, int]]()
        for leaf, spec in zip(tf.nest.flatten(data), tf.nest.flatten(self._spec)):
            count = len(tensors_of(spec))
            leaves += [None] * count if leaf is None else tensors_of(leaf)[:count]  # None: not read
            arrays += [(leaf, depth) for depth in find_depths(spec)]
        paths = {id(leaf): path for path, leaf in all_leaves(data)}
        for group in self.program.equal_values:
            together = {(id(arrays[number][0]), arrays[number][1]): arrays[number] for number in group}
            checks = check_combined_values(
                [(paths[id(leaf)], leaf, depth) for leaf, depth in together.values()]
            )
            with tf.control_dependencies(checks):
                leaves = [tf.identity(leaf) if n in group else leaf for n, leaf in enumerate(leaves)]
        place, sizes = self._mesh.place(int(step.replica_id)), self._mesh.shape
        held = step.samples, step.global_samples, step.samples_before
        replica = Replica(place[0], sizes[0], *held, copy=local_replica_index())
        others = [Replica(number, size, 1, size, number) for number, size in zip(place[1:], sizes[1:])]
        run = rebuild_step(self.program, leaves, replica, self._apply, self._compiles, others)
        outputs = run_with_collectives(run)
        hand_over(self._written)
        self._note_writes(outputs[self._results :])
        return own_results(self._result, outputs, self._labels, self._step.exits, not any(place[1:]))

    @property
    def _labels(self) -> list[Label]:
        return [self.program.values[number].label for number in self.program.outputs[: self._results]]

    @property
    def sums(self) -> list[bool]:
        """Return, for each result, whether it is a partial sum."""
        return [label == PARTIAL_SUM for label in self._labels]

    def _apply(self, number: int, tensors: list[tf.Tensor]) -> None:
        call, rest, gradients = self._calls[number], iter(tensors), list[Any]()
        for gradient, variable in call.pairs:
            if isinstance(gradient, tf.IndexedSlices):
                shape = tf.constant(tuple(variable.shape), tf.int64)
                gradients.append(tf.IndexedSlices(next(rest), next(rest), shape))
            else:
                gradients.append(None if gradient is None else next(rest))
        written = [next(rest) for _ in call.written]
        call.apply(gradients, written, None if call.weight is None else next(rest))

    def _note_writes(self, values: list[tf.Tensor]) -> None:
        """Collect what the step has assigned.

        Numbers that every replica has computed are taken from the first, as others may have rounded differently; what a
        collective returned is equal already.
        """
        outputs = self.program.outputs[self._results :]
        shared = [
            n
            for n, (v, number, label) in enumerate(zip(values, outputs, self._wanted))
            if label != PARTIAL_SUM
            and (v.dtype.is_floating or v.dtype.is_complex)
            and number not in self._received
        ]
        assign(self._variables, values, shared)


def has_own_statistics(layer: keras.layers.Layer) -> bool:
    """Return whether each replica normalizes by the statistics of its own samples."""
    return isinstance(layer, keras.layers.BatchNormalization) and not layer.synchronized


def _find_written(program: Program) -> list[Any]:
    """Return the distributed variables that a program writes with numbers that replicas may round differently."""
    captured, equal = dict((number, outer) for outer, number in program.captures), find_received(program)
    found: dict[int, Any] = {}
    for node in program.nodes:
        if isinstance(node, Copy) and row_of(node.op).writes:
            variable = find_distributed_variable(captured.get(node.inputs[0]))
            if variable is None or shares_variables(variable.distribute_strategy):
                raise NotPartitioned(
                    f"{node.op.name} writes a `tf.Variable` that has no copy on each replica"
                )
            rounded = variable.dtype.is_floating or variable.dtype.is_complex
            if rounded and not equal.issuperset(node.inputs[1:]):
                found[id(variable)] = variable
    return list(found.values())


def _aggregates_itself(optimizer: Any) -> NotPartitioned | None:
    if not aggregates_itself(optimizer):
        return None
    return NotPartitioned("it calls `aggregate_gradients` of an optimizer that has a `gradient_aggregator`")


def _contents(handle: Any, axes: int) -> Labels | None:
    """Return the labels of the value of a variable along the axes of the mesh; None where each replica has a copy."""
    variable = find_distributed_variable(handle)
    if isinstance(variable, ShardedValue):
        return labels_of_layout(variable.layout)
    if variable is not None and is_read_together(variable) and not sums_on_read(variable):
        raise NotPartitioned("it reads a variable whose copies differ and are not parts of a sum")
    return (PARTIAL_SUM,) * axes if sums_on_read(variable) else None


def _labels_written(variable: Any) -> Label | Labels:
    """Return the labels that a variable needs of what is assigned to it; a replica writes its part."""
    layout = layout_of(variable)
    return MEAN_OF_STATISTICS if layout is None else (MEAN_OF_STATISTICS, *labels_of_layout(layout)[1:])
