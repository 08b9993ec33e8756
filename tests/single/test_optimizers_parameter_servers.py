"""Under parameter servers the count of updates loses nothing, whoever adds to it."""

import pytest

# Servers of one process share its threads: with fewer threads than workers they wait for each other for ever.
PROGRAM = """
import keras, numpy as np, tensorflow as tf
from unisono import optimizers
from unisono.distribute.workers.addresses import free_ports

addresses = [f"localhost:{port}" for port in free_ports(5)]
spec = tf.train.ClusterSpec({"worker": addresses[:3], "ps": addresses[3:]})
threads = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=8)
servers = [
    tf.distribute.Server(spec, job_name=job, task_index=i, protocol="grpc", config=threads)
    for job in ("worker", "ps") for i in range(spec.num_tasks(job))
]
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    v, table = keras.Variable(np.ones(2)), keras.Variable(np.ones((4, 2)))
    optimizer = optimizers.SGD(0.001, weight_decay=0.1, global_clipnorm=1.0)
    counted = [keras.metrics.Sum(), keras.metrics.TruePositives()]

@tf.function
def step():
    def on_worker():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(v**2) + tf.reduce_sum(tf.gather(table.value, [1, 1, 2]))
        optimizer.minimize(loss, [v, table], tape=tape)
        counted[0].update_state(1.0)
        counted[1].update_state([1.0], [1.0])
    strategy.run(on_worker)

for _ in range(200):
    coordinator.schedule(step)
coordinator.join()
assert optimizer.iterations.numpy() == 200, optimizer.iterations.numpy()
assert [float(np.squeeze(metric.result())) for metric in counted] == [200.0, 200.0], counted
assert np.isfinite(v.numpy()).all() and (table.numpy()[1] < table.numpy()[2]).all()
print("counted", optimizer.iterations.numpy())
"""


@pytest.mark.process
def test_200_scheduled_steps_are_200_counted_updates(forked, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    printed = forked.run(tmp_path / "program.py", folder=tmp_path)
    assert "counted 200" in printed, printed[-3000:]
