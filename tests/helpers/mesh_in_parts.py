"""A function of a batch and of weights, partitioned over a mesh (batch, model) in one graph; compared with one device."""

from __future__ import annotations

import collections
import itertools
import math
from typing import Any

import numpy as np
import tensorflow as tf
from partition_in_parts import Parts, answer_requests

from unisono.compat.keras_private.variables import let_stand_for
from unisono.compat.tensorflow_graphs.one_device import find_distributed_variable
from unisono.compat.tensorflow_private.valueless_variables import read_unrecorded, variable_without_value
from unisono.distribute.mesh import Layout, Mesh
from unisono.trainer.partition.conversions import Replica
from unisono.trainer.partition.labels import REPLICATED, label_sharded, label_stored
from unisono.trainer.partition.memory import save_memory
from unisono.trainer.partition.partition_graph import partition_graph
from unisono.trainer.partition.program import BATCH, Convert, MeshAxis
from unisono.trainer.partition.rebuild import rebuild_step


class _Weight:
    """A weight of which each replica of a mesh of this shape keeps the part that `axes` say."""

    def __init__(self, array, axes) -> None:
        self.array, self.axes = np.asarray(array), axes if isinstance(axes, tuple) else (None, axes)
        self.labels = tuple(
            REPLICATED if a is None else kind(a) for kind, a in zip((label_stored, label_sharded), self.axes)
        )
        self.traced = variable_without_value(self.array.shape, self.array.dtype, "weight")
        stand_in: Any = self
        let_stand_for(self.traced.handle, stand_in)
        self.shards = []

    def divide(self, shape):
        layout = Layout(Mesh(("batch", "model"), shape), self.axes)
        parts = [layout.part(tf.constant(self.array), n) for n in range(math.prod(shape))]
        self.shards = [tf.Variable(part) for part in parts]


class MeshParts(Parts):
    """Args: `fn(*batch, *weights)`; `weights`: pairs of an array and the axes that the batch and `parts` replicas divide.

    A single axis is that of the `parts`. `again`: whether weights are gathered for the backward pass again.
    """

    def __init__(self, fn, batch, weights, parts=2, again=False):
        self.weights, self.parts, self.again = [_Weight(*each) for each in weights], parts, again

        def with_weights(*tensors):
            return fn(*tensors, *map(self._read, self.weights))

        super().__init__(with_weights, *batch)
        self.fn = lambda *tensors: fn(*tensors, *(tf.constant(each.array) for each in self.weights))

    def _read(self, weight):
        with tf.compat.v1.get_default_graph().as_default(), tf.control_dependencies(None):
            return read_unrecorded(weight.traced)

    def partition(self):
        self.program = partition_graph(
            self.graph, len(self.batch), [REPLICATED] * len(self.graph.outputs),
            lambda handle: getattr(find_distributed_variable(handle), "labels", None), mesh=(BATCH, MeshAxis(self.parts)),
        )  # fmt: skip
        self.traced = {}
        if self.again:
            save_memory(self.program, (), 0)

    def on_replicas(self, samples, known=True):
        if known or len(samples) not in self.traced:
            for weight in self.weights:
                weight.divide((len(samples), self.parts))
        return super().on_replicas(samples, known)

    def run_parts(self, tensors, samples):
        runs, start = {}, 0
        total = sum(samples) if isinstance(samples[0], int) else tf.add_n(samples)
        for row, count in enumerate(samples):
            first = Replica(row, len(samples), count, total, start)
            least = min if isinstance(total, int) else tf.minimum
            begin = least(start, total - first.held)
            mine = []
            for tensor in tensors:
                shape = tensor.shape
                each = (
                    (tf.shape(tensor)[0] if shape[0] is None else shape[0]) // total if shape.rank else None
                )
                mine.append(tensor if each is None else tensor[begin * each : (begin + first.held) * each])
            for part in range(self.parts):
                place = Replica(part, self.parts, 1, self.parts, part)
                copy = row * self.parts + part
                replica = Replica(row, len(samples), count, total, start, copy=copy)
                runs[row, part] = rebuild_step(self.program, mine, replica, others=[place])
            start += count
        return list(_together_in_groups(runs).values())

    def collectives(self, axis=1):
        """How often each kind of label is converted by communication along an axis of the mesh, in the program."""
        nodes = (n for n in self.program.nodes if isinstance(n, Convert) and self.program.communicates(n))
        labels = [self.program.labels_around(node)[0] for node in nodes if node.axis == axis]
        return collections.Counter(
            "gather" if each.is_sharded or each.is_stored else each.kind for each in labels
        )


def _together_in_groups(runs):
    sent = dict.fromkeys(runs)
    while True:
        asked, done = {}, {}
        for place, run in runs.items():
            try:
                asked[place] = run.send(sent[place])
            except StopIteration as end:
                done[place] = end.value
        if done:
            assert not asked
            return done
        sent = {place: [] for place in runs}
        for requests in zip(*asked.values(), strict=True):
            of_place, along = dict(zip(asked, requests)), requests[0].mesh
            key = lambda place, axis=along: [n for k, n in enumerate(place) if k != axis]  # noqa: E731
            for _, group in itertools.groupby(sorted(asked, key=key), key):
                members = list(group)
                for place in members:
                    answer = answer_requests(tuple(of_place[each] for each in members), place[along])
                    sent[place].append(answer)
