"""Every rule of the partition pass: uneven shards, also with a replica without samples, against the full batch."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import pathlib

import keras
import pytest
import tensorflow as tf
from partition_in_parts import Parts
from partition_programs import COMMUNICATED, PROGRAMS, SINGLE, S, X

from unisono.compat.tensorflow_graphs.one_device import subgraphs
from unisono.trainer.partition import builder
from unisono.trainer.partition.operations import ROWS, Row
from unisono.trainer.partition.operations import random as random_rules
from unisono.trainer.partition.program import Copy, Program, Value
from unisono.trainer.partition.rebuild import find_whole_shape
from unisono.trainer.partition.sizes.size import Samples, Size

FLOAT64, FLOAT32 = 1e-12, 1e-5  # another summation order
NEED_EXTENTS = ("other operations", "lists of tensors")  # on one device, too


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.short(
    "mean",
    "sum",
    "cross-entropy",
    "any and all",
    "minimum of two maxima",
    "ratio",
    "loop that adds up samples",
    "loop with a collective",
    "scan over time",
    "roll, reverse, cumsum of features",
    "reshapes",
    "groups of features",
    "two blocks",
    "attention",
    "matrices of samples",
    "batched product with a table",
    "top of features, of samples",
    "gather in a table",
    "gather of positions",
    "segments",
    "largest of segments",
    "scatter",
    "sizes",
    "filled",
    "filled and compared",
    "stacked",
    "split and padded",
    "padded samples",
    "linear in a sum",
    "cast",
    "chosen by a condition",
    "l2 loss",
    "argmax",
    "gradient penalty",
    "convolution",
    "resized",
    "squeezed without axes",
    "mean of integers",
    "one matrix for all samples",
    "positions of chosen samples",
    "positions of chosen entries",
    "positions along another axis",
    "sorted positions",
    "counted positions",
    "positions from a branch",
    "number of chosen samples",
    "compared sizes",
    "sizes of two tensors",
    "sizes in quotients",
    "sizes of a growing batch",
    "band",
    "tables",
    "inference of batch normalization",
    "strings",
    "written numbers",
    "draws",
)
def test_program_in_uneven_parts_matches_the_whole_and_communicates_as_little(name):
    fn, *batch = PROGRAMS[name]
    parts = Parts(fn, *batch).check(tolerance=FLOAT32 if name in SINGLE else FLOAT64)
    assert parts.communicated == COMMUNICATED[name]


@pytest.mark.short("two blocks", "segments")
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in NEED_EXTENTS])
def test_program_on_batches_of_unknown_extents_matches_the_whole(name):
    fn, *batch = PROGRAMS[name]
    Parts(fn, *batch, open_axes=True).check(tolerance=FLOAT32 if name in SINGLE else FLOAT64)


def test_gradient_of_what_is_added_to_each_sample_is_a_partial_sum_also_where_another_axis_is_unknown():
    def fn(x, y):
        with tf.GradientTape() as tape:
            shift = tf.reduce_mean(y, 0)
            tape.watch(shift)
            loss = tf.reduce_mean((x + shift) ** 3)
        return loss, tape.gradient(loss, shift)

    assert Parts(fn, X, X, open_axes=True).check().communicated[0] == 0


def test_bodies_of_nested_branches_hold_no_functions_of_deeper_ones():
    def deep(x, level=5):  # as `keras.ops.associative_scan`, which has 48 levels
        further = tf.less(tf.reduce_sum(x), tf.cast(level - 3, x.dtype))
        return tf.cond(
            further, lambda: deep(tf.sin(x), level - 1) if level else x, lambda: tf.reverse(x, [0])
        )

    def find_bodies(graph):
        for _, body in itertools.chain.from_iterable(map(subgraphs, graph.get_operations())):
            yield body
            yield from find_bodies(body)

    parts = Parts(deep, X).check()
    bodies = list(find_bodies(parts.traced_for(2).graph))
    assert len(bodies) == 2 * 2 * 6 and not any(body._functions for body in bodies)


def test_every_rule_is_used_by_a_program(monkeypatch):
    used = set()
    find = Row.find_ruling
    monkeypatch.setattr(Row, "find_ruling", lambda row, view: used.add(view.type) or find(row, view))
    for fn, *batch in PROGRAMS.values():
        Parts(fn, *batch)
    assert used == {kind for kind, row in ROWS.items() if row.has_rule and not (row.reads or row.writes)}


def test_no_file_outside_of_operations_names_one():
    root = pathlib.Path(inspect.getfile(Program)).parent
    for path in sorted(root.rglob("*.py")):
        if "operations" in path.relative_to(root).parts:
            continue
        nodes = list(ast.walk(ast.parse(path.read_text())))
        texts = [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        written = {text for text in texts if text in ROWS}
        assert not written, (path.name, written)


def _noisy(x):
    return x + tf.random.stateless_normal(tf.shape(x), [1, 2], dtype=x.dtype)


FIXED = {
    "normal": lambda x: tf.random.stateless_normal(tf.shape(x), [1, 2], dtype=x.dtype),
    "integers": lambda x: tf.random.stateless_uniform(tf.shape(x), [1, 2], None, None, tf.int64),
    "places": lambda x: tf.random.stateless_uniform([4], [1, 2], 0, tf.shape(x)[0], tf.int32),
    "Keras": lambda x: keras.random.uniform(tf.shape(x), seed=3, dtype=x.dtype),
    "dropout": lambda x: keras.random.dropout(x, 0.5, seed=3),
    "chosen": lambda x: tf.reduce_mean(_noisy(tf.boolean_mask(x, x[:, 0] > 0)) ** 2),
    "twice": lambda x: tf.random.stateless_normal(
        tf.shape(x), tf.random.experimental.stateless_split([1, 2], 2)[1], dtype=x.dtype
    ),
}


@pytest.mark.parametrize("kind", FIXED)
def test_draw_with_a_constant_seed_is_that_of_one_device(kind):
    parts = Parts(lambda x: [FIXED[kind](x), tf.reduce_mean(x * tf.cast(x > 0, x.dtype))], X)
    parts.check(tolerance=FLOAT64)


def test_leaves_with_other_numbers_of_samples_are_not_taken_for_one_batch():
    def compared(x, s):
        return tf.reduce_mean(tf.concat([x, tf.reshape(s, [-1, 3])], 0) ** 2)

    Parts(compared, X[:, :3], S).check()


def test_step_is_labelled_once_after_its_arrays_prove_to_have_the_same_samples(monkeypatch):
    labelled, label = [], builder.Builder._add_operation
    add = lambda self, op, known: (labelled.append(op.name), label(self, op, known))  # noqa: E731
    monkeypatch.setattr(builder.Builder, "_add_operation", add)
    program = Parts(lambda x, y: functools.reduce(lambda z, _: tf.sin(z), range(50), x + y), X, X).program
    assert program.one_size and program.equal == [[0, 1]] and 50 < len(labelled) < 65


def test_array_that_is_not_read_does_not_open_the_size_of_the_others():
    def of_pairs(x, s):
        return tf.reduce_mean(tf.matmul(x, x, transpose_b=True) ** 2)

    assert Parts(of_pairs, X, S).program.one_size
    assert not Parts(lambda x, s: of_pairs(x, s) + tf.reduce_mean(s), X, S).program.one_size


def test_static_shape_of_a_whole_value_is_known_for_a_known_batch():
    n = Size.of(Samples())
    program = Program([Value(tf.float32, [2 * n, 3, n - 1, n * n, None])])
    assert find_whole_shape(program, 0, 6) == [12, 3, 5, 36, None]
    assert find_whole_shape(program, 0, tf.constant(6)) is None
    program.one_size = False
    assert find_whole_shape(program, 0, 6) is None


def test_gradient_of_a_slice_may_be_0():
    def fn(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            first = tf.reduce_sum(x[:, :1])
        return tape.gradient(first, x)

    program = Parts(fn, X).program
    nodes = [node for node in program.nodes if isinstance(node, Copy) and node.op.type == "StridedSliceGrad"]
    assert [program.values[node.outputs[0]].interval for node in nodes] == [(0, 1)]


def test_key_is_constant_if_operations_without_state_compute_it_from_constants():
    with tf.Graph().as_default():
        seed = tf.constant([1, 2])
        for _ in range(40):  # each uses the one before twice: 2**40 paths
            seed = seed + seed
        folded = tf.random.experimental.stateless_fold_in(seed, 7)
        drawn = tf.random.uniform([2], maxval=9, dtype=tf.int32)
        fed = tf.compat.v1.placeholder(tf.int32, [2])
        keys = (seed, folded, drawn, fed, seed + drawn, seed + fed)
        found = [random_rules._comes_from_constants(key) for key in keys]
    assert found == [True, True, False, False, False, False]
