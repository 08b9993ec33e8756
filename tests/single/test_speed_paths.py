"""Speed never costs exactness: whichever way steps are run, numbers and calls of callbacks are the same."""

import dataclasses
import itertools
import json
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import FLOAT32, assert_close, mirrored

import unisono
from unisono.callbacks.wake import steps_to_wake
from unisono.trainer.inputs import make_source
from unisono.trainer.run import predict_loop
from unisono.trainer.run import xla_choice as tuner
from unisono.trainer.run.execution_length import Pace
from unisono.trainer.step import xla_random

ROWS, BATCH = 70, 8  # nine steps; the last batch holds six rows
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(ROWS, 4)).astype("float32")
LABELS = RANDOM.integers(0, 3, ROWS)
WORDS = np.where(np.arange(6) < RANDOM.integers(1, 7, (ROWS, 1)), RANDOM.integers(1, 20, (ROWS, 6)), 0)


def with_dropout():
    inputs = keras.Input((4,))
    h = keras.layers.Dropout(0.4, seed=3)(keras.layers.Dense(16, activation="relu")(inputs))
    h = keras.layers.GaussianNoise(0.1)(h)
    h = keras.layers.BatchNormalization()(h)
    return unisono.Model(inputs, keras.layers.Dense(3)(h)), X, LABELS


def with_masks():
    inputs = keras.Input((6,), dtype="int32")
    h = keras.layers.Embedding(20, 8, mask_zero=True)(inputs)
    h = keras.layers.LSTM(8, return_sequences=True)(h)
    return unisono.Model(inputs, keras.layers.Dense(3)(h)), WORDS, WORDS % 3


def with_two_outputs():
    inputs = keras.Input((4,))
    h = keras.layers.Dense(8, activation="tanh")(inputs)
    outputs = {"a": keras.layers.Dense(3, name="a")(h), "b": keras.layers.Dense(3, name="b")(h)}
    return unisono.Model(inputs, outputs), X, {"a": LABELS, "b": (LABELS + 1) % 3}


MODELS = {"dropout": with_dropout, "masks": with_masks, "two outputs": with_two_outputs}


class Steps(keras.callbacks.Callback):
    """Notes what it is told, at the steps at which it asks to be woken."""

    def __init__(self, every):
        super().__init__()
        self.every, self.seen = every, []

    def steps_to_wake(self, step):
        return self.every - step % self.every

    def on_train_batch_end(self, batch, logs=None):
        if (batch + 1) % self.every == 0:
            self.seen.append((batch, logs["loss"]))


class EveryBatch(keras.callbacks.Callback):
    """A callback that knows nothing of executions."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_begin(self, batch, logs=None):
        self.seen.append(("begin", batch))

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(("end", batch))


def compiled(kind="dropout", **options):
    """A seeded model, its inputs and targets."""
    if not tf.distribute.has_strategy():  # names begin anew, as in another process
        keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(5)
    model, x, y = MODELS[kind]()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    outputs = model.output_names if kind == "two outputs" else None
    metrics = ["accuracy"] if outputs is None else {name: ["accuracy"] for name in outputs}
    model.compile(
        "adam", loss if outputs is None else dict.fromkeys(outputs, loss), metrics=metrics, **options
    )
    return model, x, y


def fit(model, x, y, *callbacks, **options):
    """History of three epochs, and the model's variables after them."""
    options = {"batch_size": BATCH, "epochs": 3, "verbose": 0, **options}
    history = model.fit(x, y, callbacks=list(callbacks), **options).history
    return history, [v.numpy() for v in (*model.variables, *model.optimizer.variables)]


RULES = {
    "adam": lambda: unisono.optimizers.Adam(0.01),
    "rows only": lambda: unisono.optimizers.SGD(0.1),
    "clipped": lambda: unisono.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.05),
    "sums of squares": lambda: unisono.optimizers.Adagrad(0.1),
}


@pytest.mark.parametrize("rule, table", [*((rule, 20) for rule in RULES), ("rows only", 5000)])
def test_rows_of_a_table_under_xla(rule, table):
    """Rows that no word of the batch names keep their bits, and rows named often get the sum."""
    found = {}
    for jit in (False, True):
        keras.utils.set_random_seed(5)
        words = keras.layers.Embedding(table, 4)
        model = unisono.Sequential([keras.Input((6,), dtype="int32"), words, keras.layers.Flatten()])
        model.add(keras.layers.Dense(3))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(RULES[rule](), loss, jit_compile=jit)
        before = words.embeddings.numpy()
        found[jit] = fit(model, WORDS, LABELS)
        graph = model.train_function.graph().as_graph_def()
        sorts = any(node.op == "Unique" for f in graph.library.function for node in f.node_def)
        assert sorts == (not jit or table == 5000)
        assert np.array_equal(words.embeddings.numpy()[WORDS.max() + 1 :], before[WORDS.max() + 1 :])
    assert_close(found[True][1], found[False][1], FLOAT32, "variables")


def test_trial_does_not_take_the_cost_of_a_call_for_that_of_steps():
    now = [0.0]

    def function(chunk):
        now[0] += 7e-3 + 70e-6 * chunk.steps

    @dataclasses.dataclass
    class Steps:
        steps: int

    assert tuner._seconds_a_step(function, Steps(1024), lambda: now[0]) < 1.3 * 70e-6


@pytest.mark.parametrize("kind", MODELS)
def test_whole_loop_under_xla_gives_the_numbers_of_the_plain_graph(kind):
    found = {}
    for jit in (False, True):
        steps = Steps(4)
        model, x, y = compiled(kind, jit_compile=jit)
        found[jit] = fit(model, x, y, steps), steps.seen
        assert model.train_function.way == ("xla" if jit else "graph")
    (history, values), seen = found[False]
    (xla_history, xla_values), xla_seen = found[True]
    assert history.keys() == xla_history.keys()
    assert_close(xla_values, values, FLOAT32, "variables")
    assert_close(list(xla_history.values()), list(history.values()), FLOAT32, "history")
    assert [step for step, _ in xla_seen] == [step for step, _ in seen] == [3, 7] * 3
    assert_close([loss for _, loss in xla_seen], [loss for _, loss in seen], FLOAT32, "losses at the steps")


@pytest.mark.parametrize("jit", [False, True])
def test_callback_with_hooks_of_its_own_is_called_on_every_batch(jit):
    every = EveryBatch()
    model, x, y = compiled(jit_compile=jit)
    fit(model, x, y, every)
    assert every.seen == [(hook, batch) for batch in range(9) for hook in ("begin", "end")] * 3


@pytest.mark.parametrize(
    "options", [{"steps_per_execution": 4}, {"jit_compile": True, "steps_per_execution": 3}]
)
def test_any_number_of_steps_per_execution_gives_the_same_numbers(options):
    model, x, y = compiled(steps_per_execution=1, jit_compile=False)
    expected = fit(model, x, y)
    model, x, y = compiled(**options)
    actual = fit(model, x, y)
    assert_close(actual[1], expected[1], FLOAT32, "variables")
    assert_close(list(actual[0].values()), list(expected[0].values()), FLOAT32, "history")


@pytest.mark.parametrize("jit", ["auto", False, True])
def test_two_replicas_give_the_numbers_of_one_whichever_way_is_asked_for(jit):
    model, x, y = compiled("two outputs", jit_compile=False)
    expected = fit(model, x, y)
    with mirrored(2).scope():
        model, x, y = compiled("two outputs", jit_compile=jit)
    actual = fit(model, x, y)
    assert_close(actual[1], expected[1], FLOAT32, "variables")
    assert_close(list(actual[0].values()), list(expected[0].values()), FLOAT32, "history")


# Predictions in one call.


def predictor(kind):
    inputs = keras.Input((4,))
    h = keras.layers.Dense(3)(inputs)
    outputs = {"a": h, "b": [keras.ops.argmax(h, -1), h[:, None]]} if kind == "nest" else h
    return unisono.Model(inputs, outputs)


@pytest.mark.parametrize("kind", ["one", "nest"])
def test_predictions_in_a_loop_have_the_bits_of_those_one_by_one(kind, monkeypatch):
    x = np.resize(X, (20 * BATCH + 3, 4))
    model = predictor(kind)
    expected = model.predict(x, batch_size=BATCH, verbose=0)
    monkeypatch.setattr(predict_loop, "FEWEST_STEPS", 1)
    (loop,) = [loop for loop in model.predict_function._loops.values() if loop._rows == BATCH]
    loop._others = loop._first + 1
    actual = model.predict(x, batch_size=BATCH, verbose=0)
    assert loop._function.experimental_get_tracing_count() == 1
    keras.tree.map_structure(np.testing.assert_array_equal, actual, expected)


def test_outputs_that_vary_in_shape_are_predicted_one_by_one(monkeypatch):
    monkeypatch.setattr(predict_loop, "FEWEST_STEPS", 1)

    class Varying(unisono.Model):
        def call(self, x):
            return x[:, : tf.cast(tf.reduce_max(x), tf.int32)]

    x = np.repeat([1.0, 1.0, 3.0, 2.0], BATCH)[:, None] * np.ones(4, "float32")
    model = Varying()
    model.predict(x[:BATCH], batch_size=BATCH, verbose=0)
    for loop in model.predict_function._loops.values():
        loop._others = loop._first + 1
    assert model.predict(x, batch_size=BATCH, verbose=0).shape[0] == 4 * BATCH
    assert all(loop._refused for loop in model.predict_function._loops.values())


def test_loop_of_predictions_is_made_when_calls_have_cost_more_than_the_first():
    loop = predict_loop.PredictLoop(lambda inputs, i: None, rows=2)
    now = time.perf_counter()
    assert not loop.pays(100)
    loop.note([tf.zeros((2, 3))], now - 1.0)
    loop.note([tf.zeros((2, 3))], now - 0.9)
    assert not loop.pays(100)
    loop.note([tf.zeros((2, 3))], now - 0.9)
    assert loop.pays(100) and not loop.pays(7)


@pytest.mark.parametrize(
    "output", [tf.zeros(()), tf.zeros((3, 2)), tf.ragged.constant([[1], [2, 3]])], ids=str
)
def test_outputs_without_a_row_for_each_input_are_predicted_one_by_one(output):
    loop = predict_loop.PredictLoop(lambda inputs, i: None, rows=2)
    for _ in range(3):
        loop.note([output], time.perf_counter() - 1.0)
    assert not loop.pays(100)


# Random numbers are the same under XLA.


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(1,), (3, 5), (1001,)])
def test_xla_draws_the_numbers_of_the_plain_graph(dtype, shape):
    def graph(seed):
        ones = tf.ones(shape, dtype)
        return (
            tf.random.stateless_uniform(shape, seed, dtype=dtype),
            tf.nn.experimental.stateless_dropout(ones, 0.3, seed),
            tf.random.stateless_normal(shape, seed, dtype=dtype),
        )

    def in_xla(seed):
        ones = tf.ones(shape, dtype)
        return (
            xla_random.uniform(shape, seed, dtype),
            xla_random.dropout(ones, 0.3, None, seed),
            xla_random.normal(shape, seed, dtype),
        )

    for seed in ([1, 2], [2**31 - 1, -7]):
        seed = tf.constant(seed)
        expected = [tf.cast(v, tf.float64).numpy() for v in tf.function(graph)(seed)]
        actual = [tf.cast(v, tf.float64).numpy() for v in tf.function(in_xla, jit_compile=True)(seed)]
        np.testing.assert_array_equal(actual[0], expected[0])
        np.testing.assert_array_equal(actual[1], expected[1])
        # Sines and logarithms are rounded differently: by units in the last place.
        unit = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 2**-22, "float64": 2**-50}[dtype]
        np.testing.assert_allclose(actual[2], expected[2], rtol=8 * unit, atol=8 * unit)


# How executions are sized.


class Clock:
    """A clock that moves when it is told to."""

    now = 0.0

    def __call__(self):
        return self.now


def executions(pace, clock, steps, seconds_a_step):
    """The sizes of the executions of an epoch of `steps` steps."""
    sizes = []
    while sum(sizes) < steps:
        size = min(pace.next(), steps - sum(sizes))
        clock.now += size * seconds_a_step
        pace.done(size)
        sizes.append(size)
    return sizes


def test_executions_grow_until_they_last_as_long_as_they_should():
    clock = Clock()
    sizes = executions(Pace(None, [], clock=clock), clock, 5000, seconds_a_step=1e-4)
    assert sizes[0] == 1
    assert all(later <= 8 * earlier for earlier, later in itertools.pairwise(sizes))
    assert max(sizes) in (999, 1000)  # 0.1 s


def test_slow_steps_are_run_one_by_one():
    clock = Clock()
    assert executions(Pace(None, [], clock=clock), clock, 5, seconds_a_step=0.3) == [1] * 5


def test_executions_end_where_a_callback_wants_to_be_called():
    clock = Clock()
    pace = Pace(None, [Steps(7), Steps(10)], clock=clock)
    ends = np.cumsum(executions(pace, clock, 70, seconds_a_step=1e-6))
    assert set(range(7, 71, 7)) | set(range(10, 71, 10)) <= set(ends.tolist())


def test_fixed_steps_leave_callbacks_to_wait():
    clock = Clock()
    assert executions(Pace(4, [Steps(3)], clock=clock), clock, 12, seconds_a_step=1.0) == [4] * 3


def test_callback_says_when_it_wants_to_be_called():
    assert steps_to_wake(Steps(5), 3) == 2
    assert steps_to_wake(EveryBatch(), 3) == 1
    assert steps_to_wake(keras.callbacks.EarlyStopping(), 3) is None
    assert steps_to_wake(keras.callbacks.LambdaCallback(on_train_batch_end=print), 3) == 1
    assert steps_to_wake(keras.callbacks.LambdaCallback(on_epoch_end=print), 3) is None


# Which way is chosen.


class Function:
    """A step function that costs what it is said to cost, by a clock of its own."""

    def __init__(self, clock, operations=(), tracing=0.1, **seconds_a_step):
        self.clock, self.names, self.tracing, self.costs = clock, set(operations), tracing, seconds_a_step
        self.way, self.calls, self.choices = tuner.GRAPH, [], {}

    def operations(self, chunk):
        self.clock.now += self.tracing
        return self.names

    def __call__(self, chunk):
        self.calls.append((self.way, chunk.steps))
        cost = self.costs[self.way]
        if isinstance(cost, Exception):
            raise cost
        self.clock.now += chunk.steps * cost
        return chunk.steps, {}


@pytest.fixture
def choose(monkeypatch):
    """`choose(function arguments, steps_ahead=..., dataset=...)`: the choice, and the function that was tried."""

    def run(steps_ahead=10**6, dataset=False, **function):
        model, x, y = compiled()
        fake = Function(Clock(), **function)
        monkeypatch.setattr(model, "make_train_function", lambda: fake)
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH) if dataset else x
        source = make_source(data, None if dataset else y, batch_size=None if dataset else BATCH)
        choice = tuner.choose(model, source, steps_ahead, clock=fake.clock)
        assert fake.way == tuner.GRAPH  # the caller sets what was chosen
        return choice, fake

    return run


def test_faster_way_is_chosen_and_said(choose):
    choice, fake = choose(graph=200e-6, xla=30e-6)
    assert choice == tuner.Choice(
        tuner.XLA, "200 us a step in the plain graph, 30 us under XLA", measured=True
    )
    assert {way for way, _ in fake.calls} == {tuner.GRAPH, tuner.XLA}


def test_graph_stays_where_xla_is_not_clearly_faster(choose):
    choice, _ = choose(graph=200e-6, xla=195e-6)
    assert choice.way == tuner.GRAPH and choice.measured


def test_graph_stays_where_compiling_would_cost_more_than_it_saves(choose):
    choice, fake = choose(steps_ahead=2000, tracing=2.0, graph=200e-6, xla=30e-6)
    assert choice == tuner.Choice(tuner.GRAPH, "compiling would cost more than it saves")
    assert {way for way, _ in fake.calls} == {tuner.GRAPH}


@pytest.mark.parametrize("ahead", [0, 100, None])
def test_short_fit_starts_at_once_in_the_plain_graph(choose, ahead):
    choice, fake = choose(steps_ahead=ahead, graph=200e-6, xla=30e-6)
    assert choice.way == tuner.GRAPH and fake.calls == []


@pytest.mark.parametrize("operation", ["EagerPyFunc", "PrintV2", "WriteScalarSummary"])
def test_step_that_talks_to_the_host_is_never_tried(choose, operation):
    choice, fake = choose(operations=[operation], graph=200e-6, xla=30e-6)
    assert choice == tuner.Choice(tuner.GRAPH, "the step talks to the host")
    assert fake.calls == []


@pytest.mark.parametrize("operation", ["RandomStandardNormal", "StatelessMultinomial", "RngReadAndSkip"])
def test_step_for_which_xla_would_draw_other_numbers_is_never_tried(choose, operation):
    choice, fake = choose(operations=[operation], graph=200e-6, xla=30e-6)
    assert choice == tuner.Choice(tuner.GRAPH, "XLA would draw other random numbers")
    assert fake.calls == []


def test_second_fit_is_not_measured_again(monkeypatch):
    model, x, y = compiled()
    fake = Function(Clock(), graph=200e-6, xla=30e-6)
    monkeypatch.setattr(model, "make_train_function", lambda: fake)
    source = make_source(x, y, batch_size=BATCH)
    assert tuner.choose(model, source, 10**6, clock=fake.clock).measured
    calls = list(fake.calls)
    again = tuner.choose(model, source, 10**6, clock=fake.clock)
    assert again.way == tuner.XLA and not again.measured and fake.calls == calls
    tuner.choose(model, make_source(x, y, batch_size=2 * BATCH), 10**6, clock=fake.clock)
    assert fake.calls != calls


def test_pipeline_is_tried_like_arrays(choose):
    choice, _ = choose(dataset=True, graph=200e-6, xla=30e-6)
    assert choice.way == tuner.XLA and choice.measured


def test_batches_from_outside_of_the_graph_are_run_there(monkeypatch):
    model, x, y = compiled()
    fake = Function(Clock())
    monkeypatch.setattr(model, "make_train_function", lambda: fake)
    spec = tf.TensorSpec([None, 4]), tf.TensorSpec([None], tf.int64)
    from_outside = tf.data.Dataset.from_generator(lambda: iter([(x, y)]), output_signature=spec)
    sources = [make_source(iter([(x, y)])), make_source(from_outside)]
    for source in sources:
        choice = tuner.choose(model, source, 10**6)
        assert choice == tuner.Choice(tuner.GRAPH, "the batches come from outside of the graph")
    assert fake.calls == []


def test_step_that_xla_cannot_compile_runs_in_the_plain_graph(choose):
    error = tf.errors.InvalidArgumentError(None, None, "no kernel")
    choice, _ = choose(graph=200e-6, xla=error)
    assert choice == tuner.Choice(tuner.GRAPH, "XLA cannot compile this step")


def test_user_who_fixed_the_way_is_obeyed(choose):
    model, x, y = compiled(jit_compile=True)
    source = make_source(x, y, batch_size=BATCH)
    assert tuner.choose(model, source, 10**6).way == tuner.XLA
    model, x, y = compiled(jit_compile=False)
    assert tuner.choose(model, source, 10**6).way == tuner.GRAPH


@pytest.mark.skipif(
    bool(tf.config.list_physical_devices("GPU")), reason="convolutions in XLA's loops are slow on CPUs only"
)
def test_user_who_asks_for_xla_gets_steps_under_xla_where_its_loops_are_slow(monkeypatch):
    model, x, y = compiled(jit_compile=True)
    fake = Function(Clock(), operations=["Conv2D"])
    monkeypatch.setattr(model, "make_train_function", lambda: fake)
    source = make_source(x, y, batch_size=BATCH)
    before = source.state()
    assert tuner.choose(model, source, 10).way == tuner.GRAPH  # in whose loop each step is compiled
    assert source.state() == before
    fake.names = set()
    assert tuner.choose(model, source, 10).way == tuner.GRAPH, "asked once for one size of the batch"


def test_convolutions_compiled_step_by_step_give_the_numbers_of_the_plain_graph():
    keras.utils.set_random_seed(2)
    x, y = RANDOM.normal(size=(20, 6, 6, 1)).astype("float32"), LABELS[:20]
    found = []
    for jit in (False, True):
        keras.utils.set_random_seed(2)
        layers = [
            keras.Input((6, 6, 1)),
            keras.layers.Conv2D(3, 3),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ]
        model = unisono.Sequential(layers)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, jit_compile=jit)
        found.append(fit(model, x, y))
        assert model.train_function.way == tuner.GRAPH or tf.config.list_physical_devices("GPU")
    assert_close(found[1][1], found[0][1], FLOAT32, "variables")


@pytest.mark.parametrize("replicas", [1, 3])
def test_trial_leaves_every_bit_as_it_was(replicas, monkeypatch):
    monkeypatch.setattr(tuner, "WORTH", 0.0)
    strategy = mirrored(replicas)
    with strategy.scope():
        model, x, y = compiled()
    fit(model, x, y, epochs=1)
    source = make_source(x, y, batch_size=BATCH, shuffle=True, seed=2)
    source.begin_epoch(1)
    source.take(2)

    def everything():
        variables = [
            *model.variables,
            *model.optimizer.variables,
            *(v for m in model.metrics for v in m.variables),
        ]
        copies = [c for v in variables for c in strategy.experimental_local_results(v.value)]
        return [c.numpy() for c in copies] + [keras.random.SeedGenerator(1).state.numpy()]

    seeds = tuner.global_seed_generator_state(make=True).numpy()
    before, place = everything(), source.state()
    assert tuner.choose(model, source, 10**9).measured
    assert all(np.array_equal(a, b) for a, b in zip(before, everything(), strict=True))
    assert np.array_equal(seeds, tuner.global_seed_generator_state(make=True).numpy())
    assert all(np.array_equal(place[key], value) for key, value in source.state().items())


def on_three_replicas(choice, monkeypatch):
    """History and variables of a fit whose way was chosen, and the types of the operations of its steps."""
    monkeypatch.setattr(tuner, "choose", lambda *arguments, **options: choice)
    with mirrored(3).scope():
        model, x, y = compiled(
            "two outputs"
        )  # batch normalization over two rows would enlarge every rounding
    found = fit(model, x, y, shuffle=False)
    source = make_source(x, y, batch_size=BATCH, strategy=model.distribute_strategy)
    source.begin_epoch(0)
    graph = (
        model.train_function._compiled[model.train_function._key(source.take(1))]
        .get_concrete_function()
        .graph
    )
    functions = graph.as_graph_def().library.function
    return found, [bool(f.attr["_XlaMustCompile"].b) for f in functions]


def test_on_several_replicas_xla_compiles_what_each_computes(monkeypatch):
    plain, none_compiled = on_three_replicas(tuner.Choice(tuner.GRAPH, "the test says so"), monkeypatch)
    found, some_compiled = on_three_replicas(tuner.Choice(tuner.XLA, "the test says so"), monkeypatch)
    assert any(some_compiled) and not any(none_compiled)
    assert_close(found[1], plain[1], FLOAT32, "variables")
    assert_close(list(found[0].values()), list(plain[0].values()), FLOAT32, "history")


def test_step_of_the_users_own_stays_in_the_graph_on_several_replicas():
    class Own(unisono.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    with mirrored(2).scope():
        model = Own([keras.Input((4,)), keras.layers.Dense(3)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    source = make_source(X, LABELS, batch_size=BATCH, strategy=model.distribute_strategy)
    assert tuner.choose(model, source, 10**9).way == tuner.GRAPH


def test_printing_step_prints_once_for_each_step(capfd, monkeypatch):
    monkeypatch.setattr(tuner, "FEWEST_STEPS", 1)
    monkeypatch.setattr(tuner, "WORTH", 0.0)

    class Printing(keras.layers.Layer):
        def call(self, x):
            tf.print("called")
            return x

    inputs = keras.Input((4,))
    model = unisono.Model(inputs, keras.layers.Dense(3)(Printing()(inputs)))
    model.compile("sgd", "mse")
    model.fit(X[:64], np.zeros((64, 3), "float32"), batch_size=BATCH, epochs=2, verbose=0)
    assert capfd.readouterr().err.count("called") == 16


# Where the choice is kept.


class Stop(Exception):
    pass


class StopAt(keras.callbacks.Callback):
    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            raise Stop


@pytest.mark.parametrize("way", [tuner.GRAPH, tuner.XLA])
def test_resumed_run_repeats_the_choice_to_the_bit(tmp_path, monkeypatch, way):
    def run(folder, stop=None):
        model, x, y = compiled()
        backup = unisono.callbacks.BackupAndRestore(tmp_path / folder)
        others = [] if stop is None else [StopAt(stop)]
        found = fit(model, x, y, backup, *others)
        return found, model.train_function.way

    chosen = tuner.Choice(way, "the test says so")
    monkeypatch.setattr(tuner, "choose", lambda *args, **options: chosen)
    (history, values), used = run("whole")
    assert used == way
    with pytest.raises(Stop):
        run("killed", stop=2)
    other = tuner.Choice(tuner.XLA if way == tuner.GRAPH else tuner.GRAPH, "must not be asked")
    monkeypatch.setattr(tuner, "choose", lambda *args, **options: other)
    (resumed_history, resumed), used = run("killed")
    assert used == way
    assert resumed_history == history
    assert all(np.array_equal(a, b) for a, b in zip(values, resumed, strict=True))


def test_choice_is_remembered_in_the_folder_that_the_user_names(tmp_path, monkeypatch, choose):
    monkeypatch.setenv("UNISONO_CACHE_DIR", str(tmp_path / "ways"))
    first, _ = choose(graph=200e-6, xla=30e-6)
    again, fake = choose(graph=1.0, xla=2.0)
    assert again.way == first.way == tuner.XLA and fake.calls == []
    assert again.reason == f"remembered: {first.reason}"
    (file,) = (tmp_path / "ways").iterdir()
    for damaged in ("", "{}", "[1]", json.dumps({"way": 3})):
        file.write_text(damaged)
        choice, fake = choose(graph=200e-6, xla=300e-6)
        assert choice.way == tuner.GRAPH and choice.measured and fake.calls


def test_another_model_is_measured_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("UNISONO_CACHE_DIR", str(tmp_path))
    (model, x, y), (other, *_) = compiled("dropout"), compiled("two outputs")
    source = make_source(x, y, batch_size=BATCH)
    tuner._remember(model, source, tuner.Choice(tuner.XLA, "measured", True))
    assert tuner._remembered(model, source).way == tuner.XLA
    assert tuner._remembered(other, source) is None
    assert tuner._remembered(model, make_source(x, y, batch_size=2 * BATCH)) is None


def test_choice_holds_two_words_and_a_flag():
    assert [field.name for field in dataclasses.fields(tuner.Choice)] == ["way", "reason", "measured"]
