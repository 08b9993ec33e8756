"""Functions, branches and loops in a custom step behave as in Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import FLOAT64, assert_close, descend, scope, strategy

import unisono

layers = keras.layers
NUMBERS = np.random.default_rng(0)
X, Y = NUMBERS.normal(size=(13, 3)), NUMBERS.normal(size=(13, 2))


class Base:
    """A model, and a step that updates it, a metric and a counter."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = layers.Dense(4, activation="tanh"), layers.Dense(2)
        self.normal = layers.BatchNormalization(synchronized=True)
        self.tracker = keras.metrics.Mean(name="tracked")
        self.count = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)

    def call(self, x, training=False):
        return self.out(self.normal(self.hidden(x), training=training))

    def error(self, x, y):
        return tf.reduce_mean(tf.square(y - self(x, training=True)))

    def update(self, x, y):
        error = descend(lambda: self.error(x, y), self.optimizer, self.trainable_variables)
        self.tracker.update_state(error)
        self.count.assign_add(1)
        return error

    def logs(self, **more):
        return {"tracked": self.tracker.result(), **more}


class Whole(Base):
    """The step is a `tf.function`, as in many older programs."""

    @tf.function
    def train_step(self, data):
        return self.logs(error=self.update(*data))


class Inner(Base):
    """Calls a `tf.function` twice, with an `if` that AutoGraph converts."""

    @tf.function
    def inner(self, x, y):
        error = self.update(x, y)
        if tf.equal(self.count % 2, 0):
            self.count.assign_add(5)
        return error

    def train_step(self, data):
        self.inner(*data)
        return self.logs(error=self.inner(*data))


class Forward(Base):
    """Calls the model in a `tf.function`, inside the tape."""

    @tf.function
    def error(self, x, y):
        return super().error(x, y)

    def train_step(self, data):
        self.update(*data)
        return self.logs()


class Branch(Base):
    """A branch that updates state, and one with a gradient."""

    def error(self, x, y):
        return tf.cond(self.count > 1, lambda: Base.error(self, x, y), lambda: 2.0 * Base.error(self, x, y))

    def train_step(self, data):
        error = self.update(*data)
        tf.cond(tf.equal(self.count % 2, 0), lambda: self.count.assign_add(3), lambda: self.count * 1)
        return self.logs(error=error)


class Kept(Base):
    """The model writes and uses state: the gradient does not flow through the write."""

    def __init__(self):
        super().__init__()
        self.norm = self.add_weight(shape=(), initializer="ones", trainable=False)

    def call(self, x, training=False):
        if training:
            self.norm.assign(0.9 * self.norm + tf.reduce_sum(tf.square(self.out.kernel)))
        return super().call(x, training) / self.norm

    def train_step(self, data):
        self.update(*data)
        return self.logs()


class UpdateInBranch(Base):
    """Accumulates gradients manually, and applies them in every second step."""

    def __init__(self):
        super().__init__()
        shapes = (3, 4), (4,)
        self.sums = [self.add_weight(shape=s, initializer="zeros", trainable=False) for s in shapes]

    def train_step(self, data):
        weights = self.hidden.trainable_variables
        self.count.assign_add(1)
        with tf.GradientTape() as tape:
            error = self.error(*data)
        for total, gradient in zip(self.sums, tape.gradient(error, weights)):
            total.assign_add(gradient)

        def apply():
            self.optimizer.apply_gradients([(tf.convert_to_tensor(s), w) for s, w in zip(self.sums, weights)])
            for total in self.sums:
                total.assign(tf.zeros_like(total))

        tf.cond(tf.equal(self.count % 2, 0), apply, lambda: None)
        return {"error": error}


class UpdatesInLoop(Base):
    """Several updates for each batch, in a loop in the graph."""

    def train_step(self, data):
        tf.while_loop(lambda i: i < 3, lambda i: (self.update(*data), i + 1)[1], [tf.constant(0)])
        return self.logs()


class Vectorized(Base):
    """Computes a gradient of each sample, by functions of TensorFlow's own."""

    def train_step(self, data):
        with tf.GradientTape(persistent=True) as tape:
            outputs = self(data[0], training=True)
            squares = tf.reduce_sum(tf.square(data[1] - outputs), 1)
        kernel = self.out.kernel.value
        each = tape.jacobian(squares, kernel)
        norms = tf.vectorized_map(lambda gradient: tf.norm(gradient) + 1.0, each)
        scaled = tf.reduce_mean(each / norms[:, None, None], 0)
        self.optimizer.apply_gradients([(scaled, self.out.kernel)])
        self.tracker.update_state(tf.reduce_max(norms))
        return self.logs()


def numbers(steps, base, on=None, **how):
    keras.config.set_floatx("float64")
    keras.utils.set_random_seed(1)
    with scope(on):
        model = type(steps.__name__, (steps, base), {})()
        model(X[:1])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), **{"jit_compile": False, **how})
    rows = 13 if steps is Whole else 10  # a partial last batch is a second graph
    history = model.fit(X[:rows], Y[:rows], batch_size=5, epochs=2, shuffle=False, verbose=0).history
    slots = [np.array(variable) for variable in model.optimizer.variables]
    return [*model.get_weights(), *slots, *history.values()]


@pytest.mark.short("Branch", "UpdatesInLoop")
@pytest.mark.parametrize("steps", [Whole, Inner, Forward, Branch, Kept, UpdateInBranch, UpdatesInLoop])
def test_step_has_the_numbers_of_keras_on_one_device_and_on_several(steps):
    right = numbers(steps, keras.Model)
    assert_close(numbers(steps, unisono.Model), right, FLOAT64)
    if steps not in (UpdateInBranch, UpdatesInLoop):
        on = strategy("mirrored3" if steps is Whole else "mirrored2")
        assert_close(numbers(steps, unisono.Model, on, jit_compile=steps is Branch), right, FLOAT64)


@pytest.mark.parametrize("steps", [Inner, Vectorized])
@pytest.mark.short("Inner")
def test_step_that_calls_functions_has_its_numbers_eagerly(steps):
    right = numbers(steps, keras.Model, run_eagerly=True)
    assert_close(numbers(steps, unisono.Model, run_eagerly=True), right, FLOAT64)
    if steps is Vectorized:
        assert_close(numbers(steps, unisono.Model, strategy("mirrored2"), run_eagerly=True), right, FLOAT64)


class Either(Base):
    """An optimizer writes a weight in one branch, and an assignment in the other; loops and branches are nested."""

    traced = 0

    def __init__(self):
        super().__init__()
        self.scale = self.add_weight(shape=(), initializer="ones")

    def train_step(self, data):
        x, y = data
        self.count.assign_add(1)

        def descend():
            type(self).traced += 1
            with tf.GradientTape() as tape:
                error = tf.reduce_mean(tf.square(y - self.scale * self(x, training=True)))
            self.optimizer.apply_gradients([(tape.gradient(error, self.scale), self.scale)])
            return error

        def shrink():
            type(self).traced += 1
            self.scale.assign(0.5 * self.scale)
            tf.while_loop(lambda i: i < self.count, self.again, [tf.constant(0)])
            return tf.cast(self.scale, x.dtype)

        error = tf.cond(tf.equal(self.count % 2, 0), descend, shrink)
        self.tracker.update_state(error)
        return self.logs(scale=self.scale)

    def again(self, i):
        tf.cond(self.scale > 0.1, lambda: self.scale.assign_sub(0.05), lambda: self.scale.assign_add(0.5))
        self.count.assign_add(tf.where(i > 3, 1, 0))
        return i + 1


def test_branch_is_called_as_often_as_in_keras_and_either_way_to_write_counts():
    right, Either.traced = numbers(Either, keras.Model), 0
    assert_close(numbers(Either, unisono.Model), right, FLOAT64)
    assert Either.traced <= 2 * 2  # both branches, for a whole and for a partial batch


class Condition(Base):
    """A loop whose condition counts."""

    def train_step(self, data):
        tf.while_loop(lambda i: i < self.count.assign_add(1), lambda i: i + 2, [tf.constant(0)])
        return self.logs()


class Switched(Base):
    """Assigns in a branch that TensorFlow chooses by a number."""

    def train_step(self, data):
        tf.switch_case(self.count % 2, [lambda: self.count.assign_add(1), lambda: self.count * 1])
        return self.logs()


class Changing(Base):
    """A loop whose body assigns something else each time it is called."""

    def train_step(self, data):
        def body(i):
            Changing.written = self.normal.moving_mean if self.written is self.count else self.count
            Changing.written.assign(self.written + 1)
            return i + 1

        Changing.written = self.count
        tf.while_loop(lambda i: i < 2, body, [tf.constant(0)])
        return self.logs()


@pytest.mark.parametrize(
    "steps, words",
    [
        (Condition, "The condition of a loop assigns `"),
        (Changing, "let it assign the same variables"),
        (Switched, "use `tf.case` or `tf.cond`"),
    ],
)
def test_writes_that_cannot_leave_their_graph_are_an_error(steps, words):
    with pytest.raises(ValueError, match=words):
        numbers(steps, unisono.Model)
