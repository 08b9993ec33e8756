"""Gradients whose shape is not known while a step is traced: they are cut as their variables are."""

import helpers
import keras
import numpy as np
import tensorflow as tf

import unisono
from unisono.optimizers.call_options import CallOptions
from unisono.optimizers.sharding import stages


def test_gradient_of_unknown_shape_is_cut_as_its_variable():
    strategy, optimizer = helpers.mirrored(2), unisono.optimizers.SGD()
    with strategy.scope():
        variable = keras.Variable(np.zeros((3, 1), "float32"))  # two numbers on one replica, one on the other

    @tf.function(input_signature=[tf.TensorSpec(None)])
    def shards(gradient):
        def on_replica(gradient):
            ((own, _),) = stages.cut([(gradient, variable)])
            ((summed, _),) = stages.aggregate(optimizer, [(gradient, variable)], CallOptions(), None)
            return own, summed

        return strategy.run(on_replica, args=(gradient,))

    own, summed = map(strategy.experimental_local_results, shards(tf.constant([[1.0], [2.0], [3.0]])))
    assert [shard.numpy().tolist() for shard in own] == [[1.0, 2.0], [3.0, 0.0]]
    assert [shard.numpy().tolist() for shard in summed] == [[2.0, 4.0], [6.0, 0.0]]
