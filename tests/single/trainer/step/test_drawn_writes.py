"""Drawn steps that write in branches, loops and functions, within each other, have the numbers of plain Keras."""

import collections
import random

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import FLOAT64, assert_close, assert_equal, descend, scope, strategy

import unisono

NUMBERS = np.random.default_rng(0)
X, Y = NUMBERS.normal(size=(13, 3)), NUMBERS.normal(size=(13, 2))
DEPTH, LENGTH = 3, 3
SIMPLE = ("add", "shrink", "average", "count", "track", "read", "descend")
NESTS = ("cond", "case", "while", "map", "function", "compiled", "else")


def draw(rng, depth=0):
    """Return a list of statements: names, and tuples of a name and the lists within."""
    statements = []
    for _ in range(rng.randint(1, LENGTH)):
        if depth < DEPTH and rng.random() < 0.6:
            kind = rng.choice(NESTS)
            parts = {"cond": 2, "case": 3}.get(kind, 1)
            statements.append((kind, rng.random() < 0.5, *(draw(rng, depth + 1) for _ in range(parts))))
        else:
            statements.append(rng.choice(SIMPLE))
    return statements


def without(statements, *names):
    """Return the statements without these, within others too."""
    inner = lambda s: s if isinstance(s, str) else (*s[:2], *(without(part, *names) for part in s[2:]))  # noqa: E731
    return [inner(s) for s in statements if s not in names and s[0] not in names]


class Drawn:
    """A model whose step runs drawn statements, and counts how often each nest is called."""

    statements = ()

    def __init__(self):
        super().__init__()
        self.out = keras.layers.Dense(2)
        self.scale = self.add_weight(shape=(), initializer="ones")
        self.row = self.add_weight(shape=(3,), initializer="ones", trainable=False)
        self.counter = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)
        self.tracked = keras.metrics.Mean(name="tracked")
        self.called = []

    def call(self, x):
        return self.scale * self.out(x * self.row)

    def train_step(self, data):
        self.x, self.y = data
        self.execute(self.statements)
        return {"tracked": self.tracked.result(), "scale": self.scale, "count": self.counter}

    def error(self):
        return tf.reduce_mean(tf.square(self.y - self(self.x)))

    def execute(self, statements):
        for statement in statements:
            if isinstance(statement, str):
                getattr(self, statement)()
            else:
                name, flag, *parts = statement
                getattr(self, "nest_" + name)(flag, *parts)

    def add(self):
        self.scale.assign_add(0.25)

    def shrink(self):
        self.scale.assign(0.5 * self.scale + 0.1 * tf.reduce_sum(self.row))

    def average(self):
        self.row.assign(0.9 * self.row + 0.1 * tf.reduce_mean(self.x, 0))

    def track(self):
        self.tracked.update_state(self.scale)

    def count(self):
        self.counter.assign_add(1)

    def use_result(self):
        self.scale.assign(0.1 * self.tracked.result() + 1.0)

    def read(self):
        self.tracked.update_state(self.error())

    def descend(self):
        descend(self.error, self.optimizer, self.trainable_variables)

    def body(self, statements):
        def run(*given):
            self.called.append(id(statements))
            self.execute(statements)
            return given[0] + 1 if given else tf.cast(self.scale, "float64") + 0.0

        return run

    def nest_cond(self, flag, one, other):
        self.row.assign_add(tf.fill([3], 0.01 * tf.cond(self.test(flag), self.body(one), self.body(other))))

    def nest_else(self, flag, one):
        tf.cond(self.test(flag), lambda: None, lambda: (self.body(one)(), None)[1])

    def nest_case(self, flag, *parts):
        first, second, last = map(self.body, parts)
        tf.case([(self.test(flag), first), (self.test(not flag), second)], default=last)

    def nest_while(self, flag, body):
        most = tf.where(self.test(flag), 2, 1)
        turn = self.body(body)
        tf.while_loop(lambda i: i < most, lambda i: [turn(i)], [tf.constant(0)])

    def nest_map(self, flag, body):
        tf.map_fn(self.body(body), tf.range(2 if flag else 1))

    def nest_function(self, flag, body):
        tf.function(self.body(body))()

    def nest_compiled(self, flag, body):
        tf.function(self.body(body), jit_compile=True)()

    def test(self, flag):
        return tf.equal(self.counter % 2, 0) if flag else self.scale > 1.0


def trained(statements, base, on=None, x=X, wrap=lambda optimizer: optimizer, **how):
    """Return the model, its variables before and after two epochs, and the logs."""
    keras.config.set_floatx("float64")
    keras.utils.set_random_seed(1)
    with scope(on):
        model = type("Model", (Drawn, base), {"statements": statements})()
        model(X[:1])
        optimizer = wrap(keras.optimizers.SGD(0.01, momentum=0.5))
        model.compile(optimizer, **{"jit_compile": False, **how})
    before = model.get_weights()
    logs = model.fit(x[:10], Y[:10], batch_size=5, epochs=2, shuffle=False, verbose=0).history
    return model, before, logs


def numbers(*given, **how):
    model, _, logs = trained(*given, **how)
    state = [np.array(v) for v in (*model.variables, *model.optimizer.variables)]
    return [*state, *map(np.array, logs.values())], model.called


def always(statements):
    """Return whether no loop and no compiled function is in the statements: each nest is called once a trace."""
    nested = [s for s in statements if not isinstance(s, str)]
    return all(s[0] in ("cond", "case", "else", "function") and all(map(always, s[2:])) for s in nested)


def on_replicas(statements):
    """Return the statements with one update, at the end: no optimizer may be called in a branch there."""
    return [*without(statements, "descend"), "descend"]


@pytest.mark.short("0", "5")
@pytest.mark.parametrize("seed", range(150))
def test_drawn_step_has_the_numbers_of_keras_and_calls_branches_as_often(seed):
    statements = draw(random.Random(seed))
    right, called = numbers(statements, keras.Model)
    ours, calls = numbers(statements, unisono.Model)
    assert_close(ours, right, FLOAT64)
    if always(statements):
        theirs = collections.Counter(called)  # one trace more builds what the step creates
        assert all(count <= theirs[key] + 1 for key, count in collections.Counter(calls).items())


@pytest.mark.short("150")
@pytest.mark.parametrize("seed", range(150, 210))
def test_drawn_step_has_the_numbers_of_keras_however_it_runs(seed):
    on, how = [
        ("mirrored2", {}),
        ("central2", {}),
        ("mirrored3", {}),
        ("one", {}),
        (None, {"run_eagerly": True}),
    ][seed % 5]
    statements = draw(random.Random(seed))
    statements = statements if on in ("one", None) else on_replicas(statements)
    right, _ = numbers(statements, keras.Model, **how)
    assert_close(numbers(statements, unisono.Model, on and strategy(on), **how)[0], right, FLOAT64)


@pytest.mark.short("210")
@pytest.mark.parametrize("seed", range(210, 250))
def test_drawn_step_that_is_skipped_leaves_every_bit(seed):
    on = ["mirrored2", "none", "central2"][seed % 3]
    statements = on_replicas(draw(random.Random(seed)))
    scaled = keras.optimizers.LossScaleOptimizer
    model, before, _ = trained(statements, unisono.Model, strategy(on), X * np.inf, scaled)
    assert_equal(model.get_weights(), before)


def test_metric_is_divided_where_a_branch_needs_all_samples():
    statements = [("case", False, [], [], ["average", "read"]), "descend"]
    right, _ = numbers(statements, keras.Model)
    assert_close(numbers(statements, unisono.Model, strategy("mirrored2"))[0], right, FLOAT64)


def test_branch_that_needs_a_sum_over_replicas_runs_on_one_and_says_why(monkeypatch):
    monkeypatch.delenv("UNISONO_STRICT", raising=False)
    statements = [("case", False, [], [], ["average", "use_result"]), "descend"]
    right, _ = numbers(statements, keras.Model)
    with pytest.warns(
        UserWarning, match="needs a sum over replicas, which a branch or a loop cannot compute"
    ):
        ours, _ = numbers(statements, unisono.Model, strategy("mirrored2"))
    assert_close(ours, right, FLOAT64)


@pytest.mark.parametrize("within", ["a trace that builds", "a compiled function"])
def test_strategy_begins_after_an_error_in_map_fn(within):
    tried = [("map", False, ["descend", ("function", True, [("cond", True, ["count"], ["shrink"]), "read"])])]
    compiled = [("compiled", True, [("map", True, ["add"])])]
    numbers(tried if within == "a trace that builds" else compiled, unisono.Model)
    with strategy("mirrored2").scope():
        assert tf.Variable(1.0).numpy() == 1
