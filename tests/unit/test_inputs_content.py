"""The fingerprint of an input: equal for the same data created again, different for any other data."""

import contextlib
import functools
import random
import threading

import keras
import numpy as np
import pytest
import resumed_inputs
import tensorflow as tf
from helpers import in_threads, next_batch, source_of

from unisono.compat.tensorflow_private.dataset_graph import find_held_data, pipeline_checksum
from unisono.state.identity import described_values as content
from unisono.state.identity.described_functions import text_of_value


def arrays(change=None):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(40, 3)).astype("float32")
    if change is not None:
        values[change] += 1
    return values


def identity(*arguments, **named):
    with contextlib.closing(source_of(*arguments, **{"batch_size": 4, **named})) as source:
        return source.identity()


def inexact(x):
    """Why this input cannot be resumed exactly, known after its first batches."""
    with contextlib.closing(source_of(x)) as source:
        source.watch({})
        source.begin_epoch(0)
        next_batch(source)
        return source.inexact


def test_arrays_are_known_by_every_byte(monkeypatch):
    x = arrays()
    known = identity(x, x[:, 0])
    assert known == identity(x.copy(), x[:, 0].copy())
    others = [
        identity(arrays((17, 1)), x[:, 0]),
        identity(x, x[:, 1]),
        identity(x, x[:, 0], x[:, 0]),
        identity(x.astype("int32"), x[:, 0]),
        identity({"a": x}, x[:, 0]),
        identity(x.reshape(40, 3, 1), x[:, 0]),
        identity(x, x[:, 0], shuffle=True),
        identity(x, x[:, 0].astype("int32"), class_weight={0: 2.0}),
        identity(tf.ragged.constant([[1.0]] * 39 + [[]]), x[:, 0]),
    ]
    assert len({str(each) for each in [known, *others]}) == 1 + len(others)
    assert identity(x, x[:, 0], resident_bytes=0)["content"] == known["content"]
    monkeypatch.setattr(content, "MOST_BYTES", 64 * 24)  # two samples of each of 64 blocks
    x = np.zeros((4000, 3), "float32")
    known = content.checksum(x)
    for row in (0, 1, 3998, 3999):
        x[row] = 1
        assert content.checksum(x) != known
        x[row] = 0


def test_texts_and_objects_are_distinguished():
    texts = [np.array(value) for value in (["ab", "c"], ["a", "bc"], [b"a", b"bc"])]
    sums = [content.checksum(tf.constant(text)) for text in texts]
    assert sums[0] != sums[1] == sums[2] and None not in sums
    assert content.checksum([1.0, "text", None]) != content.checksum([2.0, "text", None])
    assert content.checksum(object()) != content.checksum(None)


class Items(keras.utils.PyDataset):
    def __init__(self, draw=lambda index: index):
        super().__init__()
        self.draw = draw

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return np.full((2, 2), self.draw(index), "float32"), np.zeros((2, 1))


def test_batches_made_by_python_are_known_unless_they_are_random():
    known = identity(Items(), batch_size=None)
    assert known["content"] is not None and known == identity(Items(), batch_size=None)
    assert identity(Items(lambda index: index + 1), batch_size=None)["content"] != known["content"]
    for draw in (lambda _: np.random.rand(), lambda _: random.random()):
        assert identity(Items(draw), batch_size=None)["content"] is None
    batches = [(np.ones((2, 2)), np.ones((2, 1)))] * 3
    assert identity(iter(batches), batch_size=None)["content"] is None


def pipeline(x, factor=2, seed=None):
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [3]), -1)
    dataset = tf.data.Dataset.from_tensor_slices(x).shuffle(8, seed=seed)
    return dataset.map(lambda row: row * factor + tf.cast(table.lookup(tf.constant(1)), tf.float32)).batch(4)


def test_pipeline_is_known_by_its_data_and_its_functions_and_nothing_is_drawn():
    x = arrays()
    known = identity(pipeline(x), batch_size=None)
    assert known["pipeline"] is not None and known == identity(pipeline(x, seed=7), batch_size=None)
    for other in (pipeline(arrays((39, 2))), pipeline(x, 3), pipeline(x).take(3)):
        assert identity(other, batch_size=None) != known


def captured(n, seed):
    generator = tf.random.Generator.from_seed(seed)
    return numbers().map(lambda x: x + n + generator.uniform([], maxval=2, dtype=tf.int64))


def in_ragged(n):
    ragged, sparse = tf.ragged.constant([[1, 2], [3], [n]]), tf.sparse.from_dense([[1, 0], [0, 2], [3, n]])
    return tf.data.Dataset.from_tensor_slices({"a": ragged, "b": (sparse, ragged)}).batch(2)


def called(function):
    return numbers().map(lambda x: tf.numpy_function(function, [x], tf.int64))


def numbers():
    return tf.data.Dataset.range(5)


# A pipeline with the constant n in it, by the kind of object that TensorFlow numbers.
NUMBERED = {
    "several maps": lambda n: numbers().map(lambda x: x + n).map(lambda x: x * 2).map(tf.negative).batch(2),
    "a cache and orders": lambda n: numbers().map(lambda x: x + n).cache().shuffle(4).batch(2),
    "random numbers": lambda n: tf.data.Dataset.random(seed=3).take(n + 1).batch(2),
    "functions in functions": lambda n: (
        numbers()
        .interleave(
            lambda x: numbers().map(lambda y: tf.cond(y > x, lambda: x + n, lambda: y)), cycle_length=2
        )
        .group_by_window(lambda x: x % 2, lambda _, window: window.batch(2), window_size=3)
    ),
    "a window": lambda n: numbers().group_by_window(lambda x: x, lambda _, w: w.batch(2), window_size=n + 1),
    "a dataset of datasets": lambda n: tf.data.Dataset.from_tensors(numbers().map(lambda x: x + n)).flat_map(
        lambda inner: inner.batch(2)
    ),
    "ragged and sparse": in_ragged,
    "a function of Python": lambda n: called((lambda x: x + 1) if n == 1 else (lambda x: x + 2)),
    "a generator": lambda n: tf.data.Dataset.from_generator(
        (lambda: iter("ab")) if n == 1 else (lambda: iter("abc")), output_signature=tf.TensorSpec([])
    ),
}


def bound(value, name):
    """A pipeline that calls a Python function with a value in its closure or its defaults."""
    inner = lambda y: value  # noqa: E731
    functions = {
        "closure": lambda x: x + value,
        "default": lambda x, other=value: x + other,
        "keyword": lambda x, *, other=value: x + other,
        "function in it": lambda x: inner(x),
        "generator": lambda: iter([value, value]),
    }
    if name == "generator":
        return tf.data.Dataset.from_generator(functions[name], output_signature=tf.TensorSpec([], tf.int64))
    return called(functions[name])


@pytest.mark.parametrize("name", ["closure", "default", "keyword", "function in it", "generator"])
@pytest.mark.short(but=["generator"])
def test_pipeline_is_known_by_the_values_that_its_functions_are_bound_to(name):
    def graph(value):
        return pipeline_checksum(bound(value, name), text_of_value)

    values = (1, 2), ("a", "b"), ((1, (2,)), (1, (3,))), (np.arange(3), np.arange(1, 4)), (None, 0)
    for first, second in values:
        assert graph(first) == graph(first) != graph(second), first
    for first, second in ((tf.constant([1.0]), tf.constant([2.0])), (frozenset("ab"), frozenset("ac"))):
        assert graph(first) != graph(second), first


def test_what_a_python_function_reads_from_its_module_is_not_known():
    """The guide "Exact resume" lists it: `BackupAndRestore(identity=...)` declares such a change."""

    def text(factor):
        module = {"__name__": "script", "FACTOR": factor}
        exec(compile("def function(x):\n    return x * FACTOR", "script.py", "exec"), module)
        return text_of_value(module["function"])

    assert text(1) == text(2)


def test_what_a_function_changes_while_it_is_used_says_nothing():
    calls, state, itself = [], {"n": 0}, []
    function = lambda x: (calls, state, itself, x)[-1]  # noqa: E731
    itself.append(function)
    before = text_of_value(function)
    calls.append(1)
    state["n"] = 1
    assert text_of_value(function) == before

    partial = [text_of_value(functools.partial(np.add, value)) for value in (1, 1, 2)]
    assert partial[0] == partial[1] != partial[2]

    def recursive(x):
        return recursive(x)

    assert text_of_value(recursive) == text_of_value(recursive)


@pytest.mark.parametrize("kind", NUMBERED)
@pytest.mark.short(
    "a cache and orders",
    "random numbers",
    "a window",
    "a dataset of datasets",
    "ragged and sparse",
    "a function of Python",
    "a generator",
)
def test_pipeline_is_known_in_a_process_that_has_made_other_functions(kind):
    """Names and numbers that TensorFlow assigns to functions and caches do not matter."""

    def checksums(n):
        held = content.checksum(find_held_data(NUMBERED[kind](n)))
        return pipeline_checksum(NUMBERED[kind](n), text_of_value), held

    known = checksums(1)
    assert known[0] is not None
    for number in range(11):  # so that the names of functions sort in another order
        numbers().map(lambda x: x + number)  # noqa: B023
    assert checksums(1) == known
    assert checksums(2)[0] != known[0]


def test_order_and_state_of_a_pipeline(tmp_path):
    """The order of transformations counts; generator states, thread counts and cache paths do not."""

    def checksum(dataset):
        return pipeline_checksum(dataset, text_of_value)

    assert checksum(numbers().map(tf.negative).take(2)) != checksum(numbers().take(2).map(tf.negative))
    assert checksum(captured(1, seed=1)) == checksum(captured(1, seed=2)) != checksum(captured(2, seed=1))
    three, four = (numbers().map(tf.negative, num_parallel_calls=count) for count in (3, 4))
    here, there = (numbers().map(tf.negative).cache(str(tmp_path / name)) for name in "ab")
    assert checksum(here) == checksum(there) != checksum(numbers().cache(str(tmp_path)).map(tf.negative))
    assert checksum(three) == checksum(four) != checksum(numbers().map(tf.abs, num_parallel_calls=3))


def test_pipeline_of_a_function_is_not_known():
    given = lambda context: tf.data.Dataset.from_tensors(arrays())  # noqa: E731
    assert identity(given, batch_size=None)["pipeline"] is None


def batches(source, epochs, first=0, step=0):
    """All batches from a position on, and the position before each."""
    found, positions = [], []
    for epoch in range(first, epochs):
        if epoch > first or not step:
            source.begin_epoch(epoch)
        while True:
            positions.append(source.state())
            batch = next_batch(source)
            if batch is None:
                break
            found.append((epoch, np.asarray(batch[0]).tobytes()))
        positions.pop()
    return found, positions


def again(name, **named):
    """The source of an input as in a new process."""
    resumed_inputs.fresh()
    source = source_of(resumed_inputs.INPUTS[name](), **named)
    source.watch({})
    return source


# Inputs without an exact resume, and a part of the reason.
INEXACT = {
    "numpy_in_parallel": "rng in parallel",
    "numpy_held_in_parallel": "rng['one'][0] in parallel",
    "numpy_global_in_parallel": "numpy.random in parallel",
    **dict.fromkeys(("seeded_layer_in_parallel", "uniform_in_parallel"), "ParallelMapDataset uses"),
    "in_any_order": "deterministic=False",
    **dict.fromkeys(
        (f"{name}_in_any_order" for name in ("mapped", "interleaved", "function")), "deterministic=False"
    ),
    "pydataset_numpy_global": "PyDataset whose batches draw random numbers from numpy.random",
    "pydataset_python": "from random,",
    "pydataset_own": "from its.draw rng",
    "pydataset_own_in_threads": "from its.draw rng",
    "pydataset_tensorflow": "from tf.random",
    "pydataset_keras": "keras.random",
    "iterable_numpy_global": "an iterable whose batches draw random numbers from numpy.random",
    "iterable_own": "from its.make rng",
}


@pytest.mark.short("undetermined_generator")
@pytest.mark.parametrize("name", resumed_inputs.INPUTS)
def test_input_resumes_bit_for_bit_or_says_why_it_cannot(name):
    """At positions within and between three epochs, each time in an input built again, as in another process."""
    source = again(name, shuffle=False)
    expected, positions = batches(source, 3)
    source.close()
    assert (source.inexact is None) == (name not in INEXACT), source.inexact
    if source.inexact is not None:
        assert INEXACT[name] in source.inexact
        return
    steps = len(expected) // 3
    assert len(positions) == len(expected) > 6
    for number in (1, steps - 1, steps + 2, 2 * steps + 1):
        resumed = again(name, shuffle=False)
        resumed.restore(positions[number])
        found, _ = batches(resumed, 3, positions[number]["epoch"], positions[number]["step"])
        resumed.close()
        assert found == expected[number:], number


def test_position_between_epochs_resumes_bit_for_bit():
    """One pass has ended and the next has not begun: everything the pass drew or stored is restored."""
    for name in ("shuffled_and_cached", "numpy_in_py_function", "repeated", "global_generator"):
        source = again(name)
        first, _ = batches(source, 1)
        position = source.state()
        assert position["step"] == len(first)
        expected, _ = batches(source, 3, first=1)
        source.close()
        resumed = again(name)
        resumed.restore(position)
        assert batches(resumed, 3, first=1)[0] == expected, name
        resumed.close()


def test_pipeline_without_seeds_is_named(monkeypatch):
    monkeypatch.setattr(tf.random, "set_seed", lambda seed: None)
    tf.compat.v1.set_random_seed(None)
    for dataset in (
        tf.data.Dataset.range(9).shuffle(3),
        tf.data.Dataset.range(9).map(lambda n: n + tf.random.uniform([], 0, 9, "int64")),
    ):
        assert "without a seed" in (said := inexact(dataset.batch(2))) and "set_random_seed" in said


def test_batches_that_draw_ahead_are_named():
    for x, kind in ((Items(lambda _: np.random.rand()), "a PyDataset"), (Drawing(), "an iterable")):
        assert f"x is {kind} whose batches draw random numbers from numpy.random" in inexact(x)
    assert inexact(Items()) is None


@contextlib.contextmanager
def drawing_elsewhere():
    """A function that makes another thread draw from each shared generator, and waits for it."""
    asked, drawn, over = threading.Event(), threading.Event(), threading.Event()

    def run():
        asked.wait()
        np.random.rand()
        random.random()
        tf.random.uniform([])
        tf.random.get_global_generator().normal([])
        drawn.set()
        over.wait()

    with in_threads(run):
        try:
            yield lambda: asked.set() or drawn.wait()
        finally:
            asked.set()
            over.set()


def test_draws_while_the_first_batches_are_made_are_reported_whoever_draws():
    """If another thread draws at this moment, there may be one warning too many, but never one too few."""
    tf.random.get_global_generator()
    for draw in (lambda: 0.0, np.random.rand):
        with drawing_elsewhere() as ask:
            found = inexact(Items(lambda _, ask=ask, draw=draw: ask() and draw()))
        assert "draw random numbers from numpy.random" in found
    assert inexact(Items(lambda _: 0.0)) is None


def test_numpy_and_random_numbers_of_tensorflow_in_one_function_are_no_random_numbers_of_numpy():
    """In a function that AutoGraph converts, like those of pipelines; reading a state draws nothing."""

    def call(row):
        np.random.get_state()
        return tf.py_function(
            lambda r: r + np.float32(1) * tf.random.stateless_normal([3], [1, 2]), [row], tf.float32
        )

    dataset = tf.data.Dataset.from_tensors(np.ones(3, "float32")).map(call, num_parallel_calls=2).batch(1)
    assert inexact(dataset) is None


class Drawing:
    def __iter__(self):
        for _ in range(3):
            yield np.random.rand(2, 2), np.zeros((2, 1))


def test_iterator_that_cannot_be_saved_later_is_not_asked_again(monkeypatch):
    """The first success guarantees nothing later: after the first failure, batches are drawn and dropped."""
    source = source_of(tf.data.Dataset.from_tensor_slices((arrays(), arrays())).batch(4))
    source.begin_epoch(0)
    assert source.resume_by == "iterator" and "iterator" in source.state()
    asked = []

    def refused(iterator):
        asked.append(iterator)
        raise tf.errors.FailedPreconditionError(None, None, "PyFunc is stateful.")

    monkeypatch.setattr("unisono.trainer.inputs.sources.dataset_source.save_iterator", refused)
    assert "iterator" not in source.state() and "iterator" not in source.state()
    assert source.resume_by == "skip" and len(asked) == 1
    source.close()


def test_pipeline_that_holds_much_is_known_by_parts_of_it(monkeypatch):
    monkeypatch.setattr("unisono.compat.tensorflow_private.dataset_graph._MOST_HELD", 100)
    known = identity(pipeline(arrays()), batch_size=None)
    assert known["pipeline"] is None
    assert known["content"] != identity(pipeline(arrays((0, 0))), batch_size=None)["content"]
