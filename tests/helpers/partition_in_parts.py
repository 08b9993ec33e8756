"""A function of a batch, partitioned and run as several replicas in one graph; compared with one device."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import tensorflow as tf

from unisono.compat.patches import replace_functions
from unisono.compat.tensorflow_graphs.named_calls import kind_of
from unisono.compat.tensorflow_graphs.one_device import subgraphs, trace_on_one_device
from unisono.distribute.replicas import local_replica_index
from unisono.distribute.step_context import ReplicaSamples, StepContext, step_scope
from unisono.trainer.inputs.batch import open_spec, sample_count, slice_samples
from unisono.trainer.partition.conversions import Replica
from unisono.trainer.partition.exchange import Request
from unisono.trainer.partition.labels import REPLICATED
from unisono.trainer.partition.partition_graph import partition_graph
from unisono.trainer.partition.program import NotPartitioned
from unisono.trainer.partition.rebuild import rebuild_step
from unisono.trainer.partition.steps.batch_tensors import find_composite, tensors_of, with_tensors
from unisono.trainer.partition.steps.step_collectives import run_with_collectives

__all__ = ["UNEVEN", "NotPartitioned", "Parts", "types_of"]

COMPOSITE = tf.RaggedTensor, tf.SparseTensor
UNEVEN = ((3, 4), (5, 2, 0), (2, 3, 2), (6, 0, 1))


class Parts:
    """Args: `fn(*tensors)`, returns a nest of tensors; `batch`: arrays with samples along axis 0.

    Arrays can have several times as many samples as the first: its samples are the units that replicas share. With
    `open_axes` no extent of the batch is known while tracing.
    """

    def __init__(self, fn, *batch, open_axes=False):
        self.batch = [each if isinstance(each, COMPOSITE) else np.asarray(each) for each in batch]
        self.fn, self.structure = fn, None
        self.specs = [_open(each, open_axes) for each in self.batch]

        def flat(*tensors):
            with replace_functions(), step_scope(StepContext(0, 1, 1, 1)):
                found = fn(*with_tensors(self.specs, tensors))
            self.structure = found
            return [tf.convert_to_tensor(t) for t in tf.nest.flatten(found)]

        self.graph = trace_on_one_device(flat, tensors_of(self.specs))
        self.partition()

    def partition(self):
        """Partitions the program."""
        wanted = [REPLICATED] * len(self.graph.outputs)
        self.program, self.traced = (
            partition_graph(
                self.graph,
                len(tensors_of(self.specs)),
                wanted,
                lambda handle: None,
                arrays=find_composite(self.specs),
            ),
            {},
        )

    def on_one_device(self):
        return [
            t.numpy()
            for t in tf.nest.flatten(tf.function(self.fn, autograph=False)(*map(_constant, self.batch)))
        ]

    def on_replicas(self, samples, known=True):
        """The outputs of replicas with so many units each; `known`: whether these numbers are static while tracing."""
        if not known:
            if len(samples) not in self.traced:
                self.traced[len(samples)] = self.traced_for(len(samples))
            found = self.traced[len(samples)](
                tf.constant(samples), *tensors_of([*map(_constant, self.batch)])
            )
        else:
            run = tf.function(lambda *tensors: self.run_parts(tensors, samples), autograph=False)
            found = run(*map(_constant, self.batch))
        return [[t.numpy() for t in each] for each in found]

    def traced_for(self, replicas):
        """A function of the samples of each replica and of a batch of any size, traced once; returns as `on_replicas`."""
        specs = [tf.TensorSpec([replicas], tf.int32), *self.specs]

        @tf.function(autograph=False, input_signature=specs)
        def run(samples, *tensors):
            return self.run_parts(tensors, tf.unstack(samples))

        return run.get_concrete_function()

    def run_parts(self, tensors, samples):
        """The outputs of each replica, whose requests are answered here."""
        return _together([self._run_part(tensors, samples, number)[1] for number in range(len(samples))])

    def run_on_strategy(self, tensors, samples):
        """The same, with the collectives of a `MirroredStrategy`; put in the place of `run_parts`."""
        strategy = _mirrored(len(samples))

        def run():
            replica, run = self._run_part(tensors, samples, local_replica_index())
            step = {field.name: getattr(replica, field.name) for field in dataclasses.fields(ReplicaSamples)}
            with step_scope(StepContext(**step)):
                return run_with_collectives(run)

        found = [strategy.experimental_local_results(output) for output in strategy.run(run)]
        return [list(each) for each in zip(*found)] or [[] for _ in samples]

    def _run_part(self, tensors, samples, number):
        start, total = (
            sum(some) if isinstance(samples[0], int) else tf.add_n([tf.constant(0), *some])
            for some in (samples[:number], samples)
        )
        replica = Replica(number, len(samples), samples[number], total, start, copy=number)
        least = min if isinstance(total, int) else tf.minimum
        begin = least(start, total - replica.held)
        mine = []
        for tensor in tensors:
            each = _extent(tensor) // total if tensor.shape.rank else None
            mine.append(tensor if each is None else _cut(tensor, begin * each, (begin + replica.held) * each))
        return replica, rebuild_step(self.program, tensors_of(mine), replica)

    def check(self, parts=UNEVEN, tolerance=1e-12, whole=None):
        """Asserts that replicas match one device (`whole`, where it is known), and each other bit for bit.

        Only the first numbers of samples are known while tracing: the others are computed in one trace.
        """
        whole = self.on_one_device() if whole is None else whole
        for samples in parts:
            assert sum(samples) == self.batch[0].shape[0]
            found = self.on_replicas(samples, known=samples == parts[0])
            for number, (expected, *copies) in enumerate(zip(whole, *found)):
                for copy in copies:
                    np.testing.assert_array_equal(copy, copies[0])
                    assert copy.shape == expected.shape, (number, copy.shape, expected.shape)
                    if expected.dtype.kind in "fc":
                        np.testing.assert_allclose(copy, expected, rtol=tolerance, atol=tolerance)
                    else:
                        np.testing.assert_array_equal(copy, expected)
        return self

    @property
    def communicated(self):
        """The number of gathered and of reduced tensors inside, and of those that the program returns."""
        found = [0, 0, 0, 0]
        for node in filter(self.program.communicates, self.program.nodes):
            label = self.program.values[node.source].label
            sharded = label.is_sharded or label.counts_values
            found[2 * (node.cause is None) + (not sharded)] += 1
        return tuple(found)

    @property
    def gathers(self):
        """The names of the operations for which tensors are gathered."""
        nodes = filter(self.program.communicates, self.program.nodes)
        sharded = [n for n in nodes if n.cause is not None and self.program.values[n.source].label.is_sharded]
        return [node.cause.name for node in sharded]


def types_of(graph):
    """The types of the operations of a graph, including branches and loops."""
    for op in graph.get_operations():
        yield kind_of(op)
        for _, inner in subgraphs(op):
            yield from types_of(inner)


@functools.cache
def _mirrored(replicas):
    """A strategy with TensorFlow's default collectives."""
    return tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(replicas)])


def _open(each, open_axes):
    """The spec of an array of any number of samples."""
    shape = [None, *([None] * len(each.shape) if open_axes else each.shape)[1:]][: len(each.shape)]
    if isinstance(each, COMPOSITE):
        return open_spec(each)
    return tf.TensorSpec(shape, each.dtype)


def _constant(each):
    return each if isinstance(each, COMPOSITE) else tf.constant(each)


def _extent(tensor):
    if isinstance(tensor, COMPOSITE):
        return sample_count(tensor)
    return tf.shape(tensor)[0] if tensor.shape[0] is None else tensor.shape[0]


def _cut(tensor, start, stop):
    return slice_samples(tensor, start, stop) if isinstance(tensor, COMPOSITE) else tensor[start:stop]


def _together(runs):
    sent = [None] * len(runs)
    while True:
        asked, done = [], []
        for run, value in zip(runs, sent):
            try:
                asked.append(run.send(value))
            except StopIteration as end:
                done.append(end.value)
        if done:
            assert not asked
            return done
        sent = [[] for _ in runs]
        for requests in zip(*asked):
            for number, each in enumerate(sent):
                each.append(answer_requests(requests, number))


def answer_requests(requests: tuple[Request, ...], number: int):
    tensors = [request.tensor for request in requests]
    axis = requests[0].axis
    if axis is None and requests[0].parts:
        return tf.add_n([rows[number] for rows in tensors])
    return tf.add_n(tensors) if axis is None else tf.concat(tensors, axis)
