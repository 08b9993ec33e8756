"""A function of a batch and of weights, partitioned over a mesh (batch, model) in one graph; compared with one device."""

from __future__ import annotations

import collections
import itertools

import numpy as np
import tensorflow as tf
from partition_in_parts import Parts, _answer

from unisono.compat.tensorflow_graphs.made_operations import stand_for
from unisono.trainer.partition.builder import READ
from unisono.trainer.partition.conversions import Replica
from unisono.trainer.partition.labels import REPLICATED, is_sharded, sharded
from unisono.trainer.partition.partition import partitioned
from unisono.trainer.partition.program import BATCH, Convert, MeshAxis
from unisono.trainer.partition.rebuild import rebuilt
from unisono.trainer.partition.values import Weights


class MeshParts(Parts):
    """Args: `fn(*batch, *weights)`; `weights`: pairs of an array and the axis that `parts` replicas divide, or None."""

    def __init__(self, fn, batch, weights, parts=2):
        self.weights, self.parts = [(np.asarray(array), axis) for array, axis in weights], parts

        def with_weights(*tensors):
            return fn(*tensors, *map(self._read, range(len(self.weights))))

        super().__init__(with_weights, *batch)
        self.fn = lambda *tensors: fn(*tensors, *(tf.constant(array) for array, _ in self.weights))

    def _read(self, number):
        array, _ = self.weights[number]
        with tf.compat.v1.get_default_graph().as_default(), tf.control_dependencies(None):
            tensor = tf.compat.v1.placeholder(array.dtype, array.shape)
            stand_for(tensor.op, READ, number)
        return tensor

    def partition(self):
        reads = [(REPLICATED, REPLICATED if axis is None else sharded(axis)) for _, axis in self.weights]
        mesh = BATCH, MeshAxis(self.parts)
        self.program = partitioned(
            self.graph, len(self.batch), [REPLICATED] * len(self.graph.outputs), lambda handle: False,
            mesh=mesh, weights=Weights(reads),
        )  # fmt: skip

    def _run_parts(self, tensors, samples):
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
                replica = Replica(row, len(samples), count, total, start)
                read = lambda number, part=part: self._part(number, part)  # noqa: E731
                runs[row, part] = rebuilt(self.program, mine, replica, read=read, others=[place])
            start += count
        return list(_together_in_groups(runs).values())

    def _part(self, number, part):
        array, axis = self.weights[number]
        return tf.constant(array if axis is None else np.split(array, self.parts, axis)[part])

    def collectives(self, axis=1):
        """How often each kind of label is converted by communication along an axis of the mesh, in the program."""
        nodes = (n for n in self.program.nodes if isinstance(n, Convert) and self.program.communicates(n))
        labels = [self.program.labels_around(node)[0] for node in nodes if node.axis == axis]
        return collections.Counter("gather" if is_sharded(label) else label.kind for label in labels)


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
            of_place = dict(zip(asked, requests))
            key = lambda place, axis=requests[0].mesh: [n for k, n in enumerate(place) if k != axis]  # noqa: E731
            for _, group in itertools.groupby(sorted(asked, key=key), key):
                members = list(group)
                answer = _answer(tuple(of_place[place] for place in members))
                for place in members:
                    sent[place].append(answer)
