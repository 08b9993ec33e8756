"""Writes to plain variables, by any method, and optimizers in branches and loops: three uneven replicas equal one device."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_close, mirrored, scope, strategy

import unisono

pytestmark = pytest.mark.usefixtures("float64")
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(8, 4)) * 1.5, RNG.integers(0, 3, 8)
CUTS = [(0, 5), (5, 7), (7, 8)]  # the last two leave replicas without samples
TOLERANCE = 1e-11  # float64: sums are added in another order
IN_A_BRANCH = "an optimizer is called in a branch or a loop"


class Net(unisono.Model):
    """A layer, and plain variables; `step(model, x, y, loss, gradients, outputs)` returns the log."""

    def __init__(self, step):
        super().__init__()
        self.step = step
        self.dense = keras.layers.Dense(3, kernel_initializer=keras.initializers.GlorotUniform(1))
        self.steps = tf.Variable(0, trainable=False)
        self.seen = tf.Variable(tf.zeros(3, tf.float64), trainable=False)
        self.queue = tf.Variable(tf.reshape(tf.range(24.0, dtype=tf.float64), (8, 3)) / 24, trainable=False)
        self.mark = keras.Variable(0.0, trainable=False, dtype="float64")
        self.generator = tf.random.Generator.from_seed(3)
        self.held = [
            tf.Variable(tf.zeros(shape, tf.float64), trainable=False, aggregation=aggregation)
            for shape, aggregation in [((4, 3), "NONE"), ((3,), "SUM")]
            for aggregation in [tf.VariableAggregation[aggregation]]
        ]

    def build(self, shape):
        self.dense.build(shape)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data[:2]
        with tf.GradientTape() as tape:
            outputs = self(x)
            losses = keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, self.trainable_variables)
        return {"loss": self.step(self, x, y, loss, gradients, outputs)}

    def test_step(self, data):
        return {"seen": tf.reduce_mean(tf.gather(self.seen, data[1])) + tf.reduce_sum(self.queue)}

    def update(self, gradients):
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))


def skip_large_losses(model, x, y, loss, gradients, outputs):
    tf.cond(loss < 1.6, lambda: model.update(gradients), lambda: None)
    return loss


@tf.function
def if_of_tensor(model, x, y, loss, gradients, outputs):
    if loss < 1.6:
        model.update(gradients)
    return loss


@tf.function
def in_loop(model, x, y, loss, gradients, outputs):
    for _ in tf.range(2):
        model.update(gradients)
    return loss


def every_second(model, x, y, loss, gradients, outputs):
    for held, gradient in zip(model.held, gradients):
        held.assign_add(gradient)
    model.steps.assign_add(1)

    def update():
        model.update([held / 2.0 for held in model.held])
        for held in model.held:
            held.assign(tf.zeros_like(held))

    tf.cond(model.steps % 2 == 0, update, lambda: None)
    return loss


def written_before_branch(model, x, y, loss, gradients, outputs):
    model.optimizer.learning_rate.assign(0.1 / (1.0 + tf.cast(loss, tf.float32)))
    for weight in model.trainable_variables:
        weight.assign(0.9 * weight)
    tf.cond(loss < 1.6, lambda: model.update(gradients), lambda: None)
    return loss + tf.reduce_sum(model.dense.kernel)


def learning_rate(model, x, y, loss, gradients, outputs):
    for factor in (0.05, 0.2):
        model.optimizer.learning_rate.assign(factor / (1.0 + tf.cast(loss, tf.float32)))
        model.update(gradients)
    return loss


def count_labels(model, x, y, loss, gradients, outputs):
    model.seen.scatter_add(tf.IndexedSlices(tf.ones_like(outputs[:, 0]), y))
    model.update(gradients)
    return loss + model.seen[0]


def count_labels_by_places(model, x, y, loss, gradients, outputs):
    model.seen.scatter_nd_add(y[:, None], tf.ones_like(outputs[:, 0]))
    model.seen.scatter_nd_sub(y[:1, None], [0.5])
    model.update(gradients)
    return loss + model.seen[0]


def queue_of_negatives(model, x, y, loss, gradients, outputs):
    model.update(gradients)
    samples = tf.shape(x)[0]
    model.queue.scatter_nd_update((model.steps + tf.range(samples))[:, None] % 8, outputs)
    model.steps.assign((model.steps + samples) % 8)
    return loss


def sliced(model, x, y, loss, gradients, outputs):
    model.queue[2:4].assign(tf.stack([tf.reduce_mean(outputs, 0), tf.reduce_max(outputs, 0)]))
    model.queue[: tf.shape(x)[0]].assign(outputs)
    model.update(gradients)
    return loss + tf.reduce_sum(model.queue)


def beside_python_code(model, x, y, loss, gradients, outputs):
    counts = tf.numpy_function(lambda y: np.bincount(y, minlength=3).astype("float64"), [y], tf.float64)
    model.seen.assign_add(counts)
    for held, gradient in zip(model.held, gradients):
        held.assign(0.9 * held + gradient)
    model.update([gradient / (1.0 + model.seen[0]) for gradient in gradients])
    model.queue[1].assign(model.dense.kernel[0])
    return loss


def written_in_branch(model, x, y, loss, gradients, outputs):
    write = tf.function(lambda: model.seen.assign_add(tf.reduce_sum(tf.one_hot(y, 3, dtype=tf.float64), 0)))
    tf.cond(loss < 1.6, lambda: tf.identity(write()), lambda: tf.identity(model.seen))
    model.update(gradients)
    return loss


class CountsSkipped(keras.optimizers.SGD):
    """Updates in a branch, and writes its own state in the other one."""

    def build(self, variables):
        super().build(variables)
        self.skipped = self.add_variable((), "zeros", "int32", name="skipped")

    def apply(self, grads, trainable_variables=None):
        def skip():
            self.skipped.assign_add(1)

        update = super().apply
        tf.cond(tf.linalg.global_norm(grads) < 1.0, lambda: update(list(grads), trainable_variables), skip)


class Merges(keras.optimizers.SGD):
    """Scales by a norm that it sums with `merge_call`, and then writes a weight in it."""

    def apply_gradients(self, grads_and_vars):
        pairs, context = list(grads_and_vars), tf.distribute.get_replica_context()
        norm = tf.linalg.global_norm([gradient for gradient, _ in pairs])
        norm = context.merge_call(lambda strategy, norm: strategy.reduce("SUM", norm, axis=None), (norm,))
        super().apply_gradients([(gradient / (1.0 + norm), variable) for gradient, variable in pairs])
        context.merge_call(
            lambda strategy: strategy.extended.update(pairs[0][1].value, lambda w: w.assign(w * 0.9))
        )


def plain(model, x, y, loss, gradients, outputs):
    model.update(gradients)
    return loss


def not_partitioned(model, x, y, loss, gradients, outputs):
    tf.numpy_function(lambda loss: None, [loss], [])
    model.update(gradients)
    return loss


def written_by_every_replica(model, x, y, loss, gradients, outputs):
    """Writes a Keras variable in the functions that replicas run for a merge function, and reads it afterwards."""
    tf.py_function(lambda loss: None, [loss], [])
    context = tf.distribute.get_replica_context()

    def add(number):
        model.mark.assign_add(number + tf.reduce_sum(model.seen))
        model.seen.assign_add([1.0, 2.0, 3.0])
        return model.mark * 2.0

    def merge(strategy, number):
        added = strategy.extended.call_for_each_replica(add, (number,))
        strategy.run(add, (strategy.experimental_local_results(added)[0],))

    model.mark.assign(45.0)
    context.merge_call(merge, (loss,))
    model.update(gradients)
    return loss + model.mark


def drawn_from_a_generator(model, x, y, loss, gradients, outputs):
    noise = model.generator.normal(tf.shape(gradients[0]), dtype=tf.float64)
    model.update([gradients[0] + noise, gradients[1]])
    return loss + model.generator.uniform([], dtype=tf.float64)


PROGRAMS = {
    "skip": (skip_large_losses, IN_A_BRANCH),
    "if": (if_of_tensor, IN_A_BRANCH),
    "loop": (in_loop, IN_A_BRANCH),
    "every second": (every_second, IN_A_BRANCH),
    "written before": (written_before_branch, IN_A_BRANCH),
    "learning rate": (learning_rate, ""),
    "scatter": (count_labels, ""),
    "places": (count_labels_by_places, ""),
    "queue": (queue_of_negatives, ""),
    "slices": (sliced, ""),
    "python": (beside_python_code, "PyFunc"),
    "branch": (written_in_branch, "has effects in a branch"),
    "own state": (plain, IN_A_BRANCH, CountsSkipped),
    "merge": (plain, "", Merges),
    "merge on one": (not_partitioned, "PyFunc", Merges),
    "merge and run": (
        written_by_every_replica,
        "device if the Python code that it runs writes no variables.",
    ),
    "generator": (drawn_from_a_generator, "draws from a `tf.random.Generator`"),
}


def trained(program, home, run_eagerly=False):
    """(logs, evaluation, weights, plain variables, optimizer state) and the warnings; all copies are equal."""
    step, _, *optimizer = PROGRAMS[program]
    keras.utils.set_random_seed(1)
    with scope(home):
        model = Net(step)
        model.build((None, 4))
        make = optimizer[0] if optimizer else unisono.optimizers.SGD
        model.compile(make(0.1), run_eagerly=run_eagerly, jit_compile=False)
    spec = tf.TensorSpec((None, 4), tf.float64), tf.TensorSpec((None,), tf.int64)
    data = tf.data.Dataset.from_generator(lambda: ((X[a:b], Y[a:b]) for a, b in CUTS), output_signature=spec)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        logs = model.fit(data, epochs=2, verbose=0).history
    seen = model.evaluate(X, Y, batch_size=8, verbose=0)
    plain = [model.steps, model.seen, model.queue, *model.held]
    if home is not None:
        for variable in [*plain, *(v.value for v in [*model.weights, *model.optimizer.variables])]:
            first, *others = home.experimental_local_results(variable)
            assert all(np.array_equal(first, other) for other in others), variable.name
    values = [v.numpy() for v in [*model.weights, *plain, *model.optimizer.variables]]
    return [logs, seen, values], " ".join(str(each.message) for each in said)


@pytest.mark.short("written before", "scatter")
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.falls_back
def test_step_that_writes_or_updates_in_a_branch_equals_one_device(program):
    (one, _), (three, said) = trained(program, None), trained(program, mirrored(3))
    assert_close(three, one, TOLERANCE)
    reason = PROGRAMS[program][1]
    assert reason in said if reason else "runs on one replica" not in said


@pytest.mark.long
@pytest.mark.falls_back
@pytest.mark.parametrize("home", ["mirrored2", "mirrored4", "central2"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_step_that_writes_or_updates_in_a_branch_equals_one_device_elsewhere(program, home):
    assert_close(trained(program, strategy(home))[0], trained(program, None)[0], TOLERANCE)


@pytest.mark.short("generator", "merge and run")
@pytest.mark.parametrize(
    "program", ["python", "written before", "places", "slices", "merge", "merge and run", "generator"]
)
def test_eager_step_that_writes_equals_one_device(program):
    one = trained(program, None, run_eagerly=True)[0]
    assert_close(trained(program, mirrored(2), run_eagerly=True)[0], one, TOLERANCE)


def test_learning_rate_written_in_a_step_holds_for_the_update_after_it():
    def weights(model_class):
        class Stepping(model_class):
            def train_step(self, data):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(self(data) ** 2)
                self.optimizer.learning_rate.assign(0.5)
                gradients = tape.gradient(loss, self.trainable_variables)
                self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
                return {"loss": loss}

        keras.utils.set_random_seed(1)
        model = Stepping([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), run_eagerly=True)
        model.fit(X, batch_size=8, verbose=0)
        return model.get_weights()

    assert_close(weights(unisono.Sequential), weights(keras.Sequential), TOLERANCE)


@pytest.mark.falls_back
def test_plain_variable_from_outside_of_the_scope_is_written_once():
    count = tf.Variable(0.0, dtype=tf.float64)

    def step(model, x, y, loss, gradients, outputs):
        count.assign_add(tf.reduce_sum(tf.ones_like(outputs[:, 0])))
        model.update(gradients)
        return loss

    with mirrored(2).scope():
        model = Net(step)
        model.build((None, 4))
        model.compile("sgd")
    with pytest.warns(UserWarning, match="that has no copy on each replica"):
        model.fit(X, Y, batch_size=4, verbose=0)
    assert float(count) == 8


@pytest.mark.filterwarnings("ignore:.*runs on one replica")
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.falls_back
@pytest.mark.short("False")
def test_step_on_one_replica_reads_the_sum_of_the_copies_of_a_variable(eager):
    """TensorFlow divides what is assigned outside of replicas by their number, so no copy has the value."""

    class Scaled(keras.layers.Layer):
        def build(self, shape):
            on_read, summed = tf.VariableSynchronization.ON_READ, tf.VariableAggregation.SUM
            zero = tf.zeros((), tf.float64)
            self.scale = tf.Variable(zero, False, synchronization=on_read, aggregation=summed)

        def call(self, x, training=False):
            if training:
                self.scale.assign_add(tf.reduce_mean(x))
            return x * self.scale

    def state(home):
        keras.utils.set_random_seed(1)
        with scope(home):
            model = unisono.Sequential([keras.Input((4,)), Scaled(), keras.layers.Dense(1)])
            model.compile("sgd", "mse", run_eagerly=eager)
        scale = model.layers[0].scale
        model.fit(X, Y, batch_size=5, shuffle=False, verbose=0)
        scale.assign(np.float64(0.5))
        logs = model.fit(X, Y, batch_size=5, shuffle=False, verbose=0).history
        return logs, model.get_weights(), tf.convert_to_tensor(scale)

    assert_close(state(mirrored(3)), state(None), TOLERANCE)


@pytest.mark.falls_back
def test_optimizer_in_a_branch_with_sharded_state_says_what_to_do():
    home = unisono.distribute.sharded(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), level="optimizer")
    with home.scope():
        model = Net(skip_large_losses)
        model.build((None, 4))
        model.compile("adam")
    with (
        pytest.warns(UserWarning, match=IN_A_BRANCH),
        pytest.raises(ValueError, match="zero gradients where nothing is to be applied"),
    ):
        model.fit(X, Y, batch_size=8, verbose=0)


@pytest.mark.falls_back
def test_text_variable_of_a_step_on_one_replica_is_named():
    def step(model, x, y, loss, gradients, outputs):
        tf.numpy_function(lambda loss: None, [loss], [])
        model.text.assign("seen")
        model.update(gradients)
        return loss

    with mirrored(2).scope():
        model = Net(step)
        model.text = tf.Variable("", trainable=False, name="text")
        model.build((None, 4))
        model.compile("sgd")
    with pytest.warns(UserWarning, match="PyFunc"), pytest.raises(TypeError, match="text variable 'text"):
        model.fit(X, Y, batch_size=8, verbose=0)


@pytest.mark.as_for_users  # the graph optimizer, which sorts the terms of a sum by their names
@pytest.mark.long
def test_copies_of_a_plain_variable_are_equal_after_sums_of_many_terms():
    def step(model, x, y, loss, gradients, outputs):
        terms = [tf.sin(model.held[0] + n) * 0.1 for n in range(11)] + [tf.cos(gradients[0])]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        model.held[0].assign(total)
        model.update(gradients)
        return loss

    PROGRAMS["sums"] = (step, "")
    try:
        trained("sums", mirrored(3))
    finally:
        del PROGRAMS["sums"]


@pytest.mark.falls_back
def test_predict_step_and_test_step_that_count_write_every_copy():
    class Counting(Net):
        def predict_step(self, data):
            self.steps.assign_add(tf.shape(data)[0])
            tf.numpy_function(lambda x: None, [data], [])
            return self(data) + tf.cast(self.steps, tf.float64)

        def test_step(self, data):
            self.seen.scatter_add(tf.IndexedSlices(data[0][:, 0], data[1]))
            return {"seen": self.seen[0]}

    def results(home):
        keras.utils.set_random_seed(1)
        with scope(home):
            model = Counting(plain)
            model.build((None, 4))
            model.compile("sgd", run_eagerly=home is None)
        first = model.predict(X, batch_size=5, verbose=0), model.evaluate(X, Y, batch_size=5, verbose=0)
        copies = [] if home is None else home.experimental_local_results(model.steps)
        assert {int(copy) for copy in copies} <= {8}
        return first, model.seen.numpy()

    two = mirrored(2)
    with pytest.warns(UserWarning, match="PyFunc"):
        many = results(two)
    assert_close(many, results(None), TOLERANCE)


class MergesInUpdate(keras.optimizers.SGD):
    """Asks for the mean of a gradient over replicas in its update rule."""

    def update_step(self, gradient, variable, learning_rate):
        context = tf.distribute.get_replica_context()
        mean = context.merge_call(lambda strategy, g: strategy.reduce("MEAN", g, axis=None), (gradient,))
        super().update_step(mean, variable, learning_rate)


def test_merge_call_in_update_step_is_rejected_with_where_it_belongs():
    with mirrored(2).scope():
        model = Net(plain)
        model.compile(MergesInUpdate(0.1))
    with pytest.raises(RuntimeError, match=r"`update_step`.*call it in `apply_gradients` of the optimizer"):
        model.fit(X, Y, batch_size=8, verbose=0)
    assert int(model.optimizer.iterations) == 0
