"""What loops draw from a chunk for each step: a batch, if there is one, and its samples."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ....compat.tensorflow_graphs.graphs import effects
from ....distribute.replicas import all_reduce_sum, local_replica_index
from ....distribute.workers.agreement import place_among_workers
from ...inputs.batch import sample_count
from ...inputs.sources.source import Chunk


class OptionalBatches:
    """Batches of data that may end: the reader yields a `tf.experimental.Optional`. `samples`: of each, where known.

    Context: cross-replica, in a `tf.function` or eager.
    """

    def __init__(self, samples: int | None) -> None:
        self._samples = samples

    def take(self, read: Any, before: Any = None) -> Any:
        """Return the tensors that a loop carries to the next step, from the reader's result and the previous step's."""
        return read

    def exists(self, drawn: Any) -> tf.Tensor:
        """Return whether `drawn`, a result of `take`, has a batch."""
        return drawn.has_value()

    def arguments(self, drawn: Any) -> tuple[Any, ...]:
        """Return the batch, its samples (int or None), and the samples of each worker where their inputs differ."""
        return drawn.get_value(), self._samples


class WorkerBatches(OptionalBatches):
    """Batches of one worker's own data, and the samples of every worker.

    The last worker's data ends the pass. Until then a worker whose data has ended continues with a borrowed batch
    without counted samples. `count` is `samples_of_workers` of the strategy.
    """

    def __init__(self, count: Callable[[tf.Tensor], tf.Tensor]) -> None:
        self._count = count

    def take(self, read: Any, before: Any = None) -> tuple[Any, tf.Tensor]:
        """Return this worker's batch, borrowed from the previous step if the data has ended, and all workers' samples."""
        borrowed = tf.nest.map_structure(_empty, read.element_spec) if before is None else before[0]
        batch = tf.cond(read.has_value(), read.get_value, lambda: borrowed)
        samples = tf.where(read.has_value(), tf.cast(sample_count(batch), tf.int32), 0)
        return batch, self._count(samples)

    def exists(self, drawn: Any) -> tf.Tensor:
        """Return whether any worker has samples."""
        return tf.reduce_sum(drawn[1]) > 0

    def arguments(self, drawn: Any) -> tuple[Any, ...]:
        """Return the batch, None, and the samples of every worker."""
        batch, counts = drawn
        return batch, None, counts


def batches_of(
    chunk: Chunk, strategy: tf.distribute.Strategy, compile_count: Callable[..., Any] = lambda count: count
) -> OptionalBatches:
    """Return how a loop draws the batches of open-ended chunks; `compile_count` wraps the function that counts samples."""
    if chunk.per_worker:
        return WorkerBatches(compile_count(functools.partial(samples_of_workers, strategy)))
    return OptionalBatches(chunk.batch_size)


def run_until_the_end(
    function: Any,
    step: Callable[..., Any],
    batches: OptionalBatches,
    read: Callable[[Any], Any],
    steps: Any,
    kept: Any,
) -> tuple[tf.Tensor, Any]:
    """Run a `StepFunction` on batches, each read after the previous step; return the steps and what they kept."""
    first = read(tf.constant(0))
    empty = tf.experimental.Optional.empty(first.element_spec)

    def body(i: tf.Tensor, drawn: Any, kept: Any) -> Any:
        function.reached.begin(i)
        with effects() as made:
            results = step(*batches.arguments(drawn))
        kept = function.keep(kept, i, results)
        with tf.control_dependencies(made):  # the step is complete before an error of the input
            function.reached.begin(i + 1)
            more = tf.cond(function.goes_on(i + 1 < steps), lambda: read(i + 1), lambda: empty)
        return i + 1, batches.take(more, drawn), kept

    def exists(i: tf.Tensor, drawn: Any, _: Any) -> Any:
        return function.goes_on(tf.logical_and(i < steps, batches.exists(drawn)))

    state = tf.constant(0), batches.take(first), kept
    if not function.model.run_eagerly:
        state = tf.while_loop(exists, body, state)
    # TensorFlow's loop takes no None, as a batch may have.
    while function.model.run_eagerly and exists(*state):
        state = body(*state)
    return state[0], state[2]


def samples_of_workers(strategy: tf.distribute.Strategy, samples: tf.Tensor) -> tf.Tensor:
    """Return the samples of every worker, int32 `(workers,)`, by one all-reduce. Context: cross-replica."""
    me, workers = place_among_workers(strategy)

    def on_replica() -> tf.Tensor:
        mine = samples if local_replica_index() == 0 else tf.zeros_like(samples)
        return all_reduce_sum([tf.one_hot(me, workers, dtype=tf.int32) * mine])[0]

    return strategy.experimental_local_results(strategy.run(on_replica))[0]


def _empty(spec: Any) -> Any:
    """Return a part of a batch of one sample of zeros, for a worker that never had any data; `spec` is a `tf.TypeSpec`."""
    if spec == tf.type_spec_from_value(None):
        return None
    shape = [1 if size is None else size for size in spec.shape]
    if isinstance(spec, tf.RaggedTensorSpec):
        splits = [
            tf.constant([0, 0] if depth == 0 else [0], spec.row_splits_dtype)
            for depth in range(spec.ragged_rank)
        ]
        values = tf.zeros([0, *shape[spec.ragged_rank + 1 :]], spec.dtype)
        return tf.RaggedTensor.from_nested_row_splits(values, splits, validate=False)
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.SparseTensor(tf.zeros([0, len(shape)], tf.int64), tf.zeros([0], spec.dtype), shape)
    return tf.zeros(shape, spec.dtype)
