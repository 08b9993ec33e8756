"""Sharded optimizer state and gradients: single-device results, full-size arrays for every reader, less memory."""

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono
from unisono import optimizers
from unisono.distribute import sharded
from unisono.distribute.sharding.sharded_value import ShardedValue
from unisono.optimizers.building import ensure_built
from unisono.optimizers.stages.gradient_watch import watch_gradients

pytestmark = pytest.mark.usefixtures("float64")
random = np.random.default_rng(1)
X = random.integers(0, 7, size=(10, 3))
Y = random.normal(size=(10, 2))


def doubled(pairs):
    return [(2 * tf.convert_to_tensor(g), v) for g, v in pairs]


class HalfOfTheSum(keras.optimizers.Optimizer):
    """A custom update rule that uses full-size weights and optimizer state."""

    def build(self, variables):
        super().build(variables)
        self.sums = self.add_optimizer_variables(variables, "sum", initializer="ones")

    def update_step(self, gradient, variable, learning_rate):
        total = self.sums[self._get_variable_index(variable)]
        self.assign_add(total, gradient)
        rate = keras.ops.cast(learning_rate, variable.dtype)
        self.assign_sub(variable, rate * (total / keras.ops.norm(total) + 0.01 * keras.ops.mean(variable)))


class Halves(HalfOfTheSum):
    """An elementwise update rule, which gets shards."""

    elementwise = True
    shapes: list = []

    def update_step(self, gradient, variable, learning_rate):
        total = self.sums[self._get_variable_index(variable)]
        self.shapes.append((tuple(gradient.shape), tuple(variable.shape)))
        self.assign_add(total, gradient)
        self.assign_sub(variable, keras.ops.cast(learning_rate, variable.dtype) * total / (1 + total**2))


class Aggregates(unisono.Sequential):
    """A step that uses the aggregated gradients before it applies them."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        pairs = zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        pairs = self.optimizer.aggregate_gradients(pairs)
        clipped, _ = tf.clip_by_global_norm([g for g, _ in pairs], 0.2)
        pairs = zip(clipped, self.trainable_variables)
        self.optimizer.apply_gradients(pairs, skip_gradients_aggregation=True)
        return {"loss": loss}


def multi():
    adam, sgd = optimizers.Adam(0.05, clipnorm=0.1), optimizers.SGD(0.1, momentum=0.9)
    return optimizers.MultiOptimizer(lambda v: adam if "kernel" in v.path else sgd)


PROGRAMS = {
    "own transformer, average": lambda: optimizers.RMSprop(
        0.02, gradient_transformers=[doubled], use_ema=True, ema_overwrite_frequency=3
    ),
    "own rule, accumulation": lambda: HalfOfTheSum(0.05, gradient_accumulation_steps=2, clipvalue=0.5),
    "own elementwise rule": lambda: Halves(0.05, weight_decay=0.1, global_clipnorm=0.3),
    "several optimizers": multi,
    "aggregator": lambda: optimizers.Adam(
        0.05, gradient_aggregator=optimizers.PackedAggregation(), gradient_accumulation_steps=2
    ),
    "aggregated by the step": lambda: optimizers.Adam(0.05),
    "loss scale": lambda: unisono.mixed_precision.LossScaleOptimizer(
        optimizers.Adam(0.05, gradient_accumulation_steps=2, weight_decay=0.1), initial_scale=16.0
    ),
    "aggregator behind a loss scale": lambda: unisono.mixed_precision.LossScaleOptimizer(
        optimizers.Adam(0.05, gradient_aggregator=optimizers.PackedAggregation())
    ),
}


def model_with(strategy, optimizer, cls=unisono.Sequential, **options):
    keras.utils.set_random_seed(1)
    with helpers.scope(strategy):
        layers = [
            keras.Input((3,), dtype="int64"),
            keras.layers.Embedding(7, 3),
            keras.layers.Flatten(),
            keras.layers.Dense(5, "tanh"),
            keras.layers.Dense(2, bias_constraint=keras.constraints.MaxNorm(0.05)),
        ]
        model = cls(layers)
        model.layers[2].trainable = False
        model.compile(optimizer, "mse", **options)
    return model


def trained(strategy, name, **options):
    with helpers.scope(strategy if name == "several optimizers" else None):
        optimizer = PROGRAMS[name]()
    model = model_with(strategy, optimizer, Aggregates if "step" in name else unisono.Sequential, **options)
    model.fit(X, Y, batch_size=5, epochs=2, shuffle=False, verbose=0)
    return model


def state(model):
    return [*model.get_weights(), *model.optimizer.get_weights()]


@pytest.mark.short("several optimizers-3-weights")
@pytest.mark.parametrize(
    ("name", "replicas", "level"),
    [(name, 2 + i % 2, ("optimizer", "weights")[i % 2]) for i, name in enumerate(PROGRAMS)],
)
def test_fit_with_sharded_state_equals_one_device(name, replicas, level):
    strategy = sharded(helpers.mirrored(replicas), level)
    Halves.shapes.clear()
    model = trained(strategy, name, run_eagerly=replicas == 3 and "loss scale" not in name)
    expected = trained(None, name, run_eagerly=True)
    helpers.assert_close(state(model), state(expected), helpers.FLOAT64, name)
    assert helpers.copies_are_equal(model.variables, strategy)
    if "elementwise" in name:
        assert {len(gradient) for gradient, _ in Halves.shapes[: 3 * replicas]} == {1}


def sharded_slots(optimizer):
    return [v for v in optimizer.variables if isinstance(v.value, ShardedValue)]


def test_optimizer_state_are_held_in_equal_parts_and_seen_whole(tmp_path):
    strategy = sharded(helpers.mirrored(3))
    model = trained(strategy, "aggregated by the step")
    adam = model.optimizer
    slots = sharded_slots(adam)
    assert len(slots) == 2 * len(model.trainable_variables) == 6
    for slot in slots:
        size = int(np.prod(slot.shape))
        assert [int(shard.shape[0]) for shard in slot.value.shards] == [-(-size // 3)] * 3
        assert len({shard.device for shard in slot.value.shards}) == 3
        assert slot.numpy().shape == tuple(slot.shape) == np.asarray(slot).shape
    before = state(model)
    adam.set_weights([2 * w for w in adam.get_weights()])
    helpers.assert_close(slots[0].numpy(), 2 * before[len(model.weights) + 2], 0.0)
    seen = strategy.experimental_local_results(strategy.run(lambda: tf.convert_to_tensor(slots[0])))
    for whole in seen:
        np.testing.assert_array_equal(whole.numpy(), slots[0].numpy())
    tf.train.Checkpoint(optimizer=adam).write(str(tmp_path / "checkpoint"))
    adam.set_weights([0 * w for w in adam.get_weights()])
    tf.train.Checkpoint(optimizer=adam).read(str(tmp_path / "checkpoint")).assert_consumed()
    helpers.assert_close(slots[0].numpy(), 2 * before[len(model.weights) + 2], 0.0)


def test_saved_model_has_whole_optimizer_state_and_trains_on_under_any_strategy(tmp_path):
    strategy = sharded(helpers.mirrored(2), "weights")
    model = model_with(strategy, optimizers.Adam(0.05, gradient_accumulation_steps=2))
    model.fit(X, Y, batch_size=5, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    plain = keras.models.load_model(tmp_path / "model.keras")
    helpers.assert_close(
        [v.numpy() for v in plain.optimizer.variables], model.optimizer.get_weights()[:-1], 0.0
    )
    found = []
    for other in (None, sharded(helpers.mirrored(3)), helpers.mirrored(2)):
        with helpers.scope(other):
            again = unisono.load_model(tmp_path / "model.keras")
        again.fit(X, Y, batch_size=5, shuffle=False, verbose=0, epochs=1)
        found.append(state(again))
        assert bool(sharded_slots(again.optimizer)) == (len(found) == 2)
        helpers.assert_close(found[-1], found[0], helpers.FLOAT64)


def test_optimizer_that_was_built_before_is_sharded_at_its_first_step():
    def program(strategy):
        keras.utils.set_random_seed(1)
        with helpers.scope(strategy):
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(5)])
            model.compile(keras.optimizers.Adam(0.1), "mse", run_eagerly=True)
            model.optimizer.build(model.trainable_variables)
            unisono.adopt(model)
        model.fit(X, Y[:, :1] * np.ones(5), batch_size=4, verbose=0, shuffle=False)
        return model

    model = program(sharded(helpers.mirrored(2), "weights"))
    assert len(sharded_slots(model.optimizer)) == 4
    helpers.assert_close(state(model), state(program(None)), helpers.FLOAT64)


def test_rule_that_reads_shapes_sees_those_of_parts():
    """Keras updates possible biases differently; here a shard is as long as a row of the full-size matrix."""

    def program(strategy):
        with helpers.scope(strategy):
            kernel, ftrl = keras.Variable(np.arange(12.0).reshape(3, 4)), optimizers.Ftrl(0.1)
            gradient = tf.ones([3, 4], tf.float64) * (3 if strategy is None else 1)
            tf.distribute.get_strategy().run(lambda: ftrl.apply_gradients([(gradient, kernel)]))
        return kernel.numpy()

    helpers.assert_close(program(sharded(helpers.mirrored(3))), program(None), helpers.FLOAT64)


@pytest.mark.parametrize("aggregator", [None, optimizers.PackedAggregation()], ids=["in parts", "whole"])
def test_gradient_of_unknown_shape_is_cut_as_its_variable(aggregator):
    strategy = sharded(helpers.mirrored(2))
    with strategy.scope():
        kernel = keras.Variable(np.zeros((3, 1)))  # two values on one replica, one on the other
        sgd = optimizers.SGD(1.0, gradient_aggregator=aggregator)

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float64)])
    def step(gradient):
        strategy.run(lambda: sgd.apply_gradients([(gradient, kernel)]))

    step(tf.constant([[1.0], [2.0], [3.0]], tf.float64))
    np.testing.assert_array_equal(kernel.numpy(), [[-2.0], [-4.0], [-6.0]])


def test_averages_in_shards_are_swapped_by_keras_callback():
    def program(strategy):
        keras.utils.set_random_seed(1)
        with helpers.scope(strategy):
            model = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(5)])
            model.compile(optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5), "mse")
        options = {"shuffle": False, "callbacks": [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)]}
        model.fit(X, Y[:, :1] * np.ones(5), batch_size=5, epochs=2, verbose=0, **options)
        return state(model)

    for level in ("optimizer", "weights"):
        found = program(sharded(helpers.mirrored(2), level))
        helpers.assert_close(found, program(None), helpers.FLOAT64, level)


def test_overflow_of_one_replicas_shard_skips_every_replica():
    strategy = sharded(helpers.mirrored(2))
    with strategy.scope():
        v = keras.Variable([1.0, 2.0, 3.0, 4.0])
        optimizer = unisono.mixed_precision.LossScaleOptimizer(optimizers.Adam(0.1), initial_scale=4.0)

    @tf.function
    def step(last):
        def on_replica():
            gradient = tf.concat([tf.ones([3]), [last]], 0)  # in the second replica's shard
            optimizer.apply_gradients([(gradient, v)])

        strategy.run(on_replica)

    step(tf.constant(1.0))
    before = [x.numpy() for x in [v, *optimizer.inner_optimizer.variables]]
    assert not np.allclose(before[0], [1.0, 2.0, 3.0, 4.0])
    step(tf.constant(np.inf))
    assert optimizer.dynamic_scale.numpy() == 2.0
    helpers.assert_equal(before, [v, *optimizer.inner_optimizer.variables])
    step(tf.constant(1.0))
    assert not np.array_equal(before[0], v.numpy())
    assert helpers.copies_are_equal([v], strategy)


def test_gradient_watch_sees_the_gradients_of_all_shards():
    found = []
    for strategy in (None, sharded(helpers.mirrored(2))):
        model = model_with(strategy, optimizers.Adam(0.05), run_eagerly=True)
        with helpers.scope(strategy):
            ensure_built(model.optimizer, model.trainable_variables)
            watch, _ = watch_gradients(model.optimizer, guard=True)
        model.fit(X, Y, batch_size=5, shuffle=False, verbose=0)
        with helpers.scope(strategy):
            assert not watch.tripped
            found.append(watch.norm)
    helpers.assert_close(found[1], found[0], helpers.FLOAT32)


@pytest.mark.short("before0-after0")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("optimizer", 2), ("optimizer", 2)),
        (("weights", 2), ("weights", 2)),
        (("weights", 2), ("optimizer", 3)),
        (("optimizer", 3), ("optimizer", 2)),
        ((None, 2), ("optimizer", 3)),
    ],
)
def test_backup_resumes_bit_for_bit_and_on_other_replicas_and_levels(tmp_path, before, after):
    def run(*callbacks):
        level, replicas = before if len(callbacks) == 2 else after
        strategy = helpers.mirrored(replicas) if level is None else sharded(helpers.mirrored(replicas), level)
        keras.backend.clear_session()
        adam = optimizers.Adam(0.05, gradient_accumulation_steps=2, use_ema=True)
        model = model_with(strategy, adam, run_eagerly=True)
        model.fit(X, Y, batch_size=3, shuffle=False, verbose=0, callbacks=[*callbacks])
        return state(model)

    found = helpers.resumed(run, tmp_path, 4)
    helpers.assert_close(found, run(), 0.0 if before == after else helpers.FLOAT64)


def test_one_replica_is_the_plain_way():
    strategy = sharded(helpers.mirrored(1))
    model = trained(strategy, "aggregated by the step", run_eagerly=True)
    assert not sharded_slots(model.optimizer)


def test_what_cannot_be_sharded_is_rejected():
    with pytest.raises(TypeError, match="`strategy` must be a tf"):
        sharded(tf.distribute.OneDeviceStrategy("CPU:0"))
    with pytest.raises(ValueError, match="is 'optimizer' for this strategy already"):
        sharded(sharded(helpers.mirrored(2)), "weights")
    with pytest.raises(ValueError, match=r"is gone: pass \"optimizer\""):
        sharded(helpers.mirrored(2), "gradients")


@pytest.mark.short("weights")
@pytest.mark.parametrize("level", ["optimizer", "weights"])
def test_level_after_the_variables_exist_is_rejected(level):
    """Variables of another strategy, and unused ones, do not matter."""
    strategy, other = helpers.mirrored(2), helpers.mirrored(2)
    with strategy.scope():
        layer, optimizer = keras.layers.Dense(2), unisono.optimizers.Adam()
        layer.build((None, 3))
        if level != "weights":
            sharded(helpers.mirrored(2), level)
            optimizer.build(layer.trainable_variables)
    with pytest.raises(ValueError, match=rf"level='{level}'\)` was called too late: .*kernel.*' exists"):
        sharded(strategy, level)
    sharded(other, level)
    del layer, optimizer
    sharded(strategy, level)


def test_level_for_the_optimizer_may_come_after_the_model():
    strategy = helpers.mirrored(2)
    with strategy.scope():
        model = model_with(strategy, optimizers.Adam())
    sharded(strategy)
    with strategy.scope():
        model.optimizer.build(model.trainable_variables)
    assert isinstance(model.optimizer.variables[-1].value, ShardedValue)
