"""A custom training loop, run on several workers and on one device: the results must match."""

import keras
import numpy as np
import tensorflow as tf

import unisono

BATCHES = (13, 2)  # sizes of the global batches: uneven over the replicas, and fewer samples than replicas
KIND = {"dtype": "float64"}


def shared_out(strategy, rows):
    """Each replica's part of `rows`, an array `[samples, ...]`; empty for some if there are fewer samples than replicas."""

    def part(context):
        me, count = context.replica_id_in_sync_group, context.num_replicas_in_sync
        return tf.constant(rows[me * len(rows) // count : (me + 1) * len(rows) // count])

    return strategy.experimental_distribute_values_from_function(part)


def trained(strategy):
    """Trains for two passes; returns arrays by name, identical on every worker."""
    keras.utils.set_random_seed(5)
    numbers = np.random.default_rng(0)
    with strategy.scope():
        layers = [
            keras.Input((2,), **KIND),
            keras.layers.Dense(3, "tanh", kernel_regularizer=keras.regularizers.L2(0.125), **KIND),
            keras.layers.BatchNormalization(momentum=0.5, synchronized=True, **KIND),
            keras.layers.Dense(1, **KIND),
        ]
        model = unisono.Sequential(layers)
        optimizer = unisono.optimizers.SGD(0.125, momentum=0.5, global_clipnorm=1.0)
        metrics = [keras.metrics.MeanAbsoluteError(**KIND), keras.metrics.Mean(**KIND)]
    loss_fn = keras.losses.MeanSquaredError(**KIND)

    @unisono.replica_step
    def train(x, y, weight):
        with tf.GradientTape() as tape:
            outputs = model(x, training=True)
            loss = loss_fn(y, outputs, sample_weight=weight)
            loss += tf.add_n(model.losses) / strategy.num_replicas_in_sync
        optimizer.minimize(loss, model.trainable_variables, tape=tape)
        metrics[0].update_state(y, outputs, sample_weight=weight)
        metrics[1].update_state(loss)
        return loss

    @tf.function
    def step(x, y, weight):
        return strategy.reduce("SUM", strategy.run(train, args=(x, y, weight)), axis=None)

    losses = []
    for rows in BATCHES * 2:
        batch = (
            numbers.normal(size=(rows, 2)),
            numbers.normal(size=(rows, 1)),
            numbers.uniform(1, 2, size=rows),
        )
        with unisono.distribute.monitored_collective(ran_before=len(losses) >= len(BATCHES)):
            losses.append(step(*(shared_out(strategy, part) for part in batch)).numpy())
    results = [metric.result().numpy() for metric in metrics]
    copies = [
        [copy.numpy() for copy in strategy.experimental_local_results(v.value)] for v in model.variables
    ]
    assert all(np.array_equal(copy, each[0]) for each in copies for copy in each)
    state = [each[0] for each in copies] + [v.numpy() for v in optimizer.variables]
    return {"losses": losses, "results": results, "state": np.concatenate([np.ravel(v) for v in state])}
