"""`replica_step` makes a custom training loop exact: it wraps the function for `strategy.run`.

`docs/design/0015-custom-loops.md` gives the reasons.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf

from ..callbacks.output_paths import check_launched_alone
from ..compat.keras_private.layers import layers_of
from ..compat.keras_private.seed_generators import thread_state
from ..compat.keras_private.training import makes_variables_late
from ..compat.tensorflow_graphs.graphs import Function, convert_as_in, leave_as_written
from ..compat.tensorflow_private.parameter_servers import num_workers_of
from ..compat.upstream_places import control_status_ctx
from ..compat.wrong_use import WrongUse
from ..distribute.arguments import show
from ..distribute.gathering import gather_for_step, join_samples
from ..distribute.mesh import combine_in_groups, mesh_of, this_replica
from ..distribute.parameter_servers.updates import on_parameter_servers
from ..distribute.replicas import all_reduce_sum, local_replica_index
from ..distribute.step_context import ReplicaSamples, StepContext, WeightTotals, current_step, step_scope
from ..distribute.workers.agreement import spans_workers
from ..state.random_state import find_reached
from ..state.variable_state import held_by
from .inputs.batch import batch_spec, sample_count
from .parameter_servers.step_results import ReadOnce
from .partition.labels import SHARES
from .partition.steps.step import Step
from .partition.steps.step_partition import StepPartition
from .partition.steps.whole_step import WholeStep
from .run.build import trace_to_build
from .step.collected_writes import CollectedWrites
from .step.first_call import run_outside
from .step.train_step import Tracing, replica_function


@leave_as_written
def replica_step(fn: Function) -> Function:
    """Make a step of a custom training loop exact, by wrapping the function that you pass to `strategy.run`.

    The function is a single-device program: traced once, for the samples of all replicas, and partitioned. On any number of
    replicas with any numbers of samples:

    - A number that it computes covers the global batch. The result of `strategy.run` on each replica is its share: the
        sum of the shares is the number. Tensors with the samples of the batch stay on the replicas of these samples.
    - `strategy.num_replicas_in_sync` is 1 in it; `unisono.distribute.gather` and all-reduces are the identity.
    - Dropout and noise differ between replicas, and depend only on the seed.
    - `BatchNormalization` uses the samples of the replica, unless it is `synchronized`, and keeps one state.
    - Layers may be called for the first time.
    - With a loss scale, a skipped step has no side effects.
    - On parameter servers every scheduled step counts once in metrics and states, and no two draw the same random numbers.

    If a function cannot be partitioned, one replica runs it, and a warning says why.

    Args:
        fn: takes this replica's samples: tensors `(samples, ...)` or nests of them, with the same number of samples, and
            other arguments, the same on every replica.

    Returns:
        The function to pass to `strategy.run`. With one replica, or without a strategy, it does the same.

    Raises:
        TypeError: `fn` is not a function, or was made by `tf.function`.

    Examples:
        >>> @unisono.replica_step
        ... def train_step(x, y):
        ...     with tf.GradientTape() as tape:
        ...         loss = tf.reduce_mean((y - model(x, training=True)) ** 2)
        ...     model.optimizer.minimize(loss, model.trainable_variables, tape=tape)
        ...     return loss
        >>> strategy = tf.distribute.get_strategy()  # the one in whose scope `model` was built
        >>> loss = strategy.reduce("SUM", strategy.run(train_step, args=(x, y)), axis=None)
    """
    if isinstance(fn, tf.types.experimental.PolymorphicFunction):
        raise WrongUse(
            f"`replica_step` takes a Python function. Received: {fn!r}. Put `tf.function` around the function that calls "
            "`strategy.run`."
        )
    if not callable(fn):
        raise WrongUse(f"`fn`: `replica_step` takes a function. Received: {show(fn)}")
    partitioned = _partition(fn)
    check = functools.cache(functools.partial(check_launched_alone, ()))

    @functools.wraps(fn)
    def on_replica(*args: Any, **kwargs: Any) -> Any:
        context = tf.distribute.get_replica_context()
        if context is None:
            raise WrongUse(
                "A function that `replica_step` has wrapped was called outside `strategy.run`: pass it to `strategy.run`."
            )
        check(context.strategy)
        if current_step() is not None:
            raise WrongUse(
                "A function that `replica_step` has wrapped was called in a step of `fit`, which is exact by itself, "
                "or in another such function: wrap only the outermost one."
            )
        if context.num_replicas_in_sync == 1:
            status = control_status_ctx()
            if status.status.name == "UNSPECIFIED":  # in a replica's thread: `strategy.run`'s caller has it
                with contextlib.suppress(RuntimeError):  # a nested graph: nothing around it is converted
                    status = context.merge_call(leave_as_written(lambda _: control_status_ctx()))
            return _alone(convert_as_in(fn, status), args, kwargs)
        return context.merge_call(leave_as_written(partitioned), args=(args, kwargs))

    return cast(Function, leave_as_written(on_replica))


def _alone(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the step on the only replica; on a worker of parameter servers, which has only one replica."""
    samples = _samples_in([_tensor(leaf) for leaf in tf.nest.flatten((args, kwargs)) if _is_tensor(leaf)])
    strategy = tf.distribute.get_strategy()
    step = StepContext(
        0, 1, samples, samples, totals=WeightTotals(), of_custom_loop=True, builds_under=strategy
    )
    several = on_parameter_servers() and num_workers_of(strategy) > 1
    step.writes = writes = ReadOnce(alone=not several) if on_parameter_servers() else CollectedWrites()
    with step_scope(step):
        with writes:
            result = fn(*args, **kwargs)
        writes.make(step)
    return result


def _partition(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return `run(strategy, args, kwargs)`: shares of the results, on several replicas. Context: `merge_call` of all."""
    said: set[str] = set()
    partitions: dict[Any, Callable[..., Any]] = {}

    def run(strategy: tf.distribute.Strategy, args: Any, kwargs: Any) -> Any:
        leaves = tf.nest.flatten((args, kwargs))
        local = [strategy.experimental_local_results(leaf) for leaf in leaves]
        varies = [_is_tensor(each[0]) for each in local]
        static = [None if is_tensor else each[0] for is_tensor, each in zip(varies, local)]
        structure = str(tf.nest.map_structure(lambda _: 0, (args, kwargs)))
        key = id(strategy), structure, tuple(varies), tuple(map(_identity, static))
        if key not in partitions:
            partitions[key] = _for_arguments(fn, strategy, (args, kwargs), static, varies, said)
        return partitions[key]([each for each, is_tensor in zip(local, varies) if is_tensor])

    return run


def _for_arguments(
    fn: Callable[..., Any],
    strategy: tf.distribute.Strategy,
    structure: Any,
    static: list[Any],
    varies: list[bool],
    said: set[str],
) -> Callable[[list[tuple[Any, ...]]], Any]:
    """Return the step for arguments that differ only in tensors; it takes those of each replica of this worker."""
    roots = {"fn": fn, "arguments": static}
    layers = [inner for _, each in find_reached(roots, (keras.layers.Layer,)) for inner in layers_of(each)]
    metrics = [metric for _, metric in find_reached(roots, (keras.metrics.Metric,))]
    metrics += [metric for layer in layers for metric in getattr(layer, "metrics", ())]
    variables = [v for each in (*layers, *metrics) for v in each.variables]
    autograph: Any = None

    def call(tensors: list[Any]) -> Any:
        """Call the user's function with these tensors."""
        rest = iter(tensors)
        leaves = [next(rest) if is_tensor else leaf for is_tensor, leaf in zip(varies, static)]
        args, kwargs = tf.nest.pack_sequence_as(structure, leaves)
        return convert_as_in(fn, autograph)(*args, **kwargs)

    def find_held() -> list[Any]:
        return [variable for _, variable in find_reached({**roots, **held_by(layers)}, (tf.Variable,))]

    name = f"The step `{getattr(fn, '__name__', fn)}`"
    step_of_user = Step(call, strategy, name, layers, variables, SHARES, True, find_held)
    partition = StepPartition(step_of_user, said)

    def run(tensors: list[tuple[Any, ...]]) -> Any:
        nonlocal autograph
        autograph = control_status_ctx()
        count = len(strategy.extended.worker_devices)
        given = [[_tensor(each[r if len(each) > 1 else 0]) for each in tensors] for r in range(count)]
        counts = [_samples_in(each) for each in given]
        thread_state()  # before the trace, in which the global seed generator could not be created
        late = [] if tf.executing_eagerly() else [each for each in metrics if makes_variables_late(each)]
        if late:
            spec = _spec(given)
            run_outside(lambda: trace_to_build(call, spec, variables), strategy)
            variables.extend(v for metric in late for v in metric.variables)
        step = partition.whole() if tf.executing_eagerly() else partition.of(_spec(given), batches=given)

        def data_of() -> tuple[Any, ReplicaSamples]:
            part, own = _samples_of_replica(strategy, counts), given[local_replica_index()]
            if isinstance(step, WholeStep):
                with step_scope(StepContext(**vars(part))):
                    own = gather_for_step(own)
                size = part.global_samples
                part.samples, part.first_sample = (size, 0) if part.replica_id == 0 else (0, size)
            else:
                own = [_with_a_sample(tensor, part.samples) for tensor in _join_of_model(strategy, own, part)]
            return own, part

        checks = [check for each in given for check in step.check_samples(each)]
        return strategy.run(replica_function(strategy, step, data_of, Tracing(after=checks)))

    return run


def _is_tensor(leaf: Any) -> bool:
    """Return whether an argument is a tensor, or an array that becomes one."""
    if isinstance(leaf, tf.Variable | keras.Variable):
        return False
    return tf.is_tensor(leaf) or isinstance(leaf, np.ndarray | np.generic)


def _tensor(leaf: Any) -> Any:
    return leaf if tf.is_tensor(leaf) else tf.convert_to_tensor(leaf)


def _identity(leaf: Any) -> Any:
    """Return the hashable identity of an argument that is not a tensor."""
    return (type(leaf), leaf) if isinstance(leaf, bool | int | float | str | bytes | None) else id(leaf)


def _samples_in(tensors: list[Any]) -> Any:
    """Return the number of samples of one replica: an int where it is known while tracing."""
    with_samples = [tensor for tensor in tensors if tensor.shape.rank != 0]
    return sample_count(with_samples) if with_samples else 1


def _spec(of_replicas: list[list[Any]]) -> list[Any]:
    """Return the specs of tensors, for any number of samples."""
    specs = [batch_spec(tensors) for tensors in of_replicas]
    return [functools.reduce(lambda a, b: a.most_specific_common_supertype([b]) or a, s) for s in zip(*specs)]


def _with_a_sample(tensor: Any, samples: Any) -> Any:
    """Return the tensor, or for a replica without samples one sample of zeros, which does not count."""
    if tensor.shape.rank == 0 or (isinstance(samples, int) and samples > 0):
        return tensor
    more = tf.where(samples > 0, 0, 1)
    if isinstance(tensor, tf.RaggedTensor):  # a sample without values
        splits = tf.concat([tensor.row_splits, tf.repeat(tensor.row_splits[-1:], more)], 0)
        return tf.RaggedTensor.from_row_splits(tensor.values, splits, validate=False)
    if isinstance(tensor, tf.SparseTensor):
        shape = tf.tensor_scatter_nd_add(tensor.dense_shape, [[0]], [tf.cast(more, tf.int64)])
        return tf.SparseTensor(tensor.indices, tensor.values, shape)
    nothing = tf.zeros(tf.concat([[more], tf.shape(tensor)[1:]], 0), tensor.dtype)
    return tf.ensure_shape(tf.concat([tensor, nothing], 0), [None, *tensor.shape[1:]])


def _join_of_model(strategy: tf.distribute.Strategy, tensors: list[Any], part: ReplicaSamples) -> list[Any]:
    """Join the samples of all replicas with parts of this one's model, each of which computes all of them."""
    axes = [axis for axis, size in enumerate(mesh_of(strategy).shape) if axis and size > 1]

    def concatenate(tensor: tf.Tensor) -> tf.Tensor:
        for axis in reversed(axes):
            (tensor,) = combine_in_groups([tensor], [axis], [0], equal=False)
        return tensor

    return (
        [join_samples(each, part.returned[0], part.samples, concatenate) for each in tensors]
        if axes
        else tensors
    )


def _samples_of_replica(strategy: tf.distribute.Strategy, samples: list[Any]) -> ReplicaSamples:
    """Return the range of this replica's samples in the global batch; replicas with parts of one model share samples."""
    replicas, me, mesh = strategy.num_replicas_in_sync, this_replica(), mesh_of(strategy)
    if spans_workers(strategy):
        mine = tf.one_hot(me, replicas, dtype=tf.int32) * tf.cast(samples[local_replica_index()], tf.int32)
        samples = tf.unstack(all_reduce_sum([mine])[0])
    order, batch = mesh.replicas, mesh.place(me)[0]
    together = [samples[n] for n in order if mesh.place(n)[0] == batch]
    before = [samples[n] for n in order if mesh.place(n)[0] < batch]
    part = ReplicaSamples(me, replicas, sum(together), sum(samples), sum(before))
    if len(together) > 1:
        position = order.index(me)
        earlier = order[position - position % len(together) : position]
        part.returned = sum(samples[n] for n in earlier), samples[me]
    return part
