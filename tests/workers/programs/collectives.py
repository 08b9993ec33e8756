"""Runs the collectives of `distribute` on every worker; results go to worker-<index>.npz."""

import pathlib
import sys

import numpy as np
import tensorflow as tf

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[2] / "helpers"))
from custom_loop import trained
from tensorflow.python.eager import context

from unisono.distribute import auto_strategy, global_mean, is_chief, num_workers, worker_index
from unisono.distribute.mesh import combine_in_groups
from unisono.distribute.replicas import (
    all_reduce_sum,
    all_reduce_sum_packed,
    local_copy,
    local_replica_index,
    once_per_copy,
    replica_id,
)
from unisono.distribute.workers.agreement import check_same_everywhere, from_chief

out = sys.argv[1]
strategy = auto_strategy()
found = {}


def local(value):
    return [np.asarray(v) for v in strategy.experimental_local_results(value)]


with strategy.scope():
    variable = tf.Variable(tf.zeros([3]), aggregation=tf.VariableAggregation.NONE)
    count = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.NONE)
    weight = tf.Variable([[1.0], [2.0]])


@tf.function
def collectives(x):
    def on_replica(x):
        me = tf.cast(replica_id(), tf.float32)
        plain, argument = all_reduce_sum([tf.fill([2], me), x])
        slices = tf.IndexedSlices(tf.fill([1, 2], me), tf.cast([replica_id()], tf.int32), tf.constant([8, 2]))
        (sparse,) = all_reduce_sum([slices])
        packed = all_reduce_sum_packed([tf.fill([2, 2], me), tf.cast([replica_id()], tf.float64), me])
        local_copy(variable).assign(tf.fill([3], plain[0]))
        once_per_copy(lambda: local_copy(count).assign_add(1))()
        return plain, argument, tf.convert_to_tensor(sparse), packed, replica_id(), local_replica_index()

    return strategy.run(on_replica, args=(x,))


@tf.function
def sums_of_large(x):
    def on_replica(x):
        return all_reduce_sum([tf.fill([2**18 + layer], x) for layer in range(3)])

    return strategy.run(on_replica, args=(x,))


# The all-reduces in the order of the graph, which is their launch order: gradients of the last layers come first.
found["launched"] = [
    op.outputs[0].shape[0]
    for op in sums_of_large.get_concrete_function(tf.TensorSpec([])).graph.get_operations()
    if op.type == "CollectiveReduceV2" and "CPU:0" in op.device
]

found["piece"] = context.context().config.experimental.recv_buf_max_chunk

for _ in range(2):
    plain, argument, sparse, packed, ids, local_ids = collectives(tf.constant(3.0))
found["plain"], found["argument"], found["sparse"] = local(plain), local(argument), local(sparse)
found["packed"] = [np.concatenate([np.ravel(v) for v in row]) for row in zip(*[local(p) for p in packed])]
found["ids"], found["local_ids"] = local(ids), local(local_ids)
found["variable"], found["count"] = local(variable), local(count)

# A custom loop: the samples of the global batch are sharded unevenly, and the result matches one device.
data = np.random.default_rng(0)
x, y = data.normal(size=(13, 2)).astype("float32"), data.normal(size=(13, 1)).astype("float32")


@tf.function
def step(x, y):
    def on_replica(x, y):
        me, all_ = replica_id(), strategy.num_replicas_in_sync
        low, high = me * 13 // all_, (me + 1) * 13 // all_
        with tf.GradientTape() as tape:
            loss = global_mean(tf.square(x[low:high] @ weight - y[low:high])[:, 0])
        gradient, total = all_reduce_sum([tape.gradient(loss, weight), loss])
        local_copy(weight).assign_sub(0.1 * gradient)
        return total

    return strategy.run(on_replica, args=(x, y))


for _ in range(3):
    loss = step(tf.constant(x), tf.constant(y))
found["loss"], found["weight"] = local(loss), local(weight)

with strategy.scope():
    found["chief"] = from_chief([10.0 + worker_index(), 0.1])
    check_same_everywhere({"samples": 13}, "the test")
    try:
        check_same_everywhere({"samples": 13 + worker_index(), "same": "yes"}, "the arguments of fit")
        found["refused"] = ""
    except ValueError as error:
        found["refused"] = str(error)
    found["cluster"] = [is_chief(), num_workers(), worker_index(), strategy.num_replicas_in_sync]


@tf.function
def of_a_mesh():
    def on_replica():
        me, one = tf.cast(replica_id(), tf.float32), tf.ones([])
        nothing = tf.boolean_mask(tf.fill([2, 3], me), [me < 0, me < 0])
        wave = tf.fill([2], tf.complex(me, one))
        return combine_in_groups([nothing, tf.transpose(nothing), nothing[:, :0], wave, wave],
                                 [0] * 5, [0, 1, 0, None, 0])  # fmt: skip

    return strategy.run(on_replica)


empty, empty_columns, narrow, found["waves"], found["every wave"] = map(local, of_a_mesh())
found["nothing"] = [each[0].shape for each in (empty, empty_columns)] + [narrow[0].shape]
for name, value in trained(strategy).items():
    found[f"loop {name}"] = value
np.savez(f"{out}/worker-{worker_index()}.npz", **found)
