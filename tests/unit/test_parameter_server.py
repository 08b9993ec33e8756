"""Parts that need no cluster: rejected setups, modes, summing matrices of totals, splitting gradients."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_equal

import unisono
from unisono.distribute.parameter_servers import shards as parameter_server_shards
from unisono.distribute.parameter_servers import strategy as parameter_server
from unisono.distribute.parameter_servers.strategy import ParameterServerStrategy
from unisono.distribute.workers.cluster import ClusterError
from unisono.optimizers.stages.user_code import is_elementwise
from unisono.optimizers.update_rules import replica_rule
from unisono.trainer.inputs.sources.source import Chunk
from unisono.trainer.parameter_servers.piece_schedule import wants_each_step
from unisono.trainer.parameter_servers.step_results import CustomLogs, ResultLayout
from unisono.trainer.parameter_servers.worker_function import pieces_of
from unisono.trainer.parameter_servers.worker_steps import WorkerSteps
from unisono.trainer.run.loops.compiled_calls import CallLength

GOOD = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}


@pytest.mark.parametrize(
    ("jobs", "task", "words"),
    [
        ({"chief": ["a:1"], "ps": ["d:1"]}, "chief", "no worker"),
        ({"chief": ["a:1"], "worker": ["b:1"]}, "chief", "no parameter server"),
        ({**GOOD, "stage": ["e:1"]}, "chief", "unknown task type 'stage'"),
        ({**GOOD, "chief": ["a:1", "a:2"]}, "chief", "2 chiefs"),
        (GOOD, "worker", "is a 'worker'"),
        (GOOD, "ps", "unisono.distribute.server"),
    ],
)
def test_cluster_that_cannot_train_is_rejected_in_one_sentence(jobs, task, words):
    with pytest.raises(ClusterError, match=words):
        parameter_server.check_cluster(jobs, task)


def test_strategy_in_a_worker_is_rejected_before_it_connects(monkeypatch):
    config = {"cluster": GOOD, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    with pytest.raises(ClusterError, match="only the coordinator"):
        ParameterServerStrategy()
    monkeypatch.delenv("TF_CONFIG")
    with pytest.raises(ClusterError, match="unisono launch"):
        ParameterServerStrategy()


@pytest.mark.parametrize("argument", ["run_eagerly", "jit_compile"])
def test_steps_that_a_lost_worker_would_leave_in_part_or_xla_are_rejected(argument):
    model = unisono.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **{argument: True})
    with pytest.raises(ValueError, match=f"`{argument}=True`"):
        WorkerSteps(model, training=True)


def test_results_of_steps_hold_metrics_and_own_logs_where_they_belong():
    class Model:
        metrics_variables = keras.metrics.Mean().variables

    layout = ResultLayout(Model, CustomLogs(["raw"], {"raw": tf.TensorSpec([2], tf.float32)}, {}))
    metrics, logs = [tf.constant(3.0), tf.constant(4.0)], {"raw": tf.constant([5.0, 6.0])}
    row = layout.pack(tf.constant(True), metrics, logs).numpy()
    assert row.tolist() == [1, 1, 3, 4, 5, 6]
    assert layout.part(row[None], 1).tolist() == [4]
    assert layout.logs_of(row)["raw"].tolist() == [5, 6]


def test_compiled_calls_are_short_near_the_end_so_that_no_worker_is_waited_for():
    length = CallLength(None, workers=2)
    length._steps = 64
    assert [length.of_worker(100 - done, None, 512) for done in (0, 60, 92, 99)] == [25, 10, 2, 1]
    assert length.of_worker(100, 3, 512) == 3
    assert CallLength(8, workers=2).of_worker(1, None, 8) == 8
    assert CallLength(8, workers=2).of_worker(100, 3) == 3, "limited by max_staleness"


def test_results_of_workers_come_at_an_even_pace():
    now = iter([0.0, 9.0, 9.0, 9.01, 9.02, 9.04, 9.04 + 0.2])
    length, steps = CallLength(None, workers=2, clock=lambda: next(now)), []
    for _ in range(6):
        length.note_call(length.of_worker(None))
        steps.append(length.of_worker(None))
    assert steps == [1, 1, 2, 4, 8, 2], "the first two have compiled; then each may double, and one came late"
    assert length.step == 1 + 1 + 1 + 2 + 4 + 8 and length.last_batch(8) == length.step - 1


@pytest.mark.parametrize("sparse", [True, False])
def test_gradient_of_split_variable_is_concatenated_and_cut_again(sparse):
    shards = [tf.Variable(np.ones((rows, 2), "float32")) for rows in (3, 2)]
    if sparse:
        parts = [
            tf.IndexedSlices(tf.constant([[1.0, 1], [2, 2]]), tf.constant([2, 0])),
            tf.IndexedSlices(tf.constant([[3.0, 3]]), tf.constant([1])),
        ]
    else:
        parts = [tf.constant([[2.0, 2], [0, 0], [1, 1]]), tf.constant([[0.0, 0], [3, 3]])]
    joined = parameter_server_shards._concatenate_gradients(parts, shards)
    whole = tf.convert_to_tensor(joined).numpy()
    assert whole[:, 0].tolist() == [2, 0, 1, 0, 3]
    second = replica_rule._rows_of(joined, 3, 2)
    assert tf.convert_to_tensor(second).numpy()[:, 0].tolist() == [0, 3]


def test_only_rules_that_treat_each_number_by_itself_run_on_parts():
    assert is_elementwise(keras.optimizers.Adam()) and is_elementwise(keras.optimizers.SGD())
    assert not is_elementwise(keras.optimizers.Adafactor())

    class Own(keras.optimizers.Adam):
        def update_step(self, gradient, variable, learning_rate):
            pass

    assert not is_elementwise(Own())


def test_callbacks_that_read_every_step_make_each_step_a_piece():
    class Vectors(keras.callbacks.Callback):
        def on_train_steps_end(self, first, logs):
            pass

    class Saver(keras.callbacks.Callback):
        def steps_until_call(self, step):
            return 5

        def on_train_batch_end(self, batch, logs=None):
            pass

    class Reader(Saver):
        only_reads_logs = True

    for callback in (Vectors(), Reader(), keras.callbacks.TerminateOnNaN()):
        assert wants_each_step([callback]) is True
    assert not wants_each_step([Saver(), keras.callbacks.History()])


def test_batches_whose_arrays_have_different_samples_are_pieces_of_their_own():
    batches = [(tf.ones([2, 3]), tf.range(few)) for few in (5, 7)]
    pieces = pieces_of(Chunk(None, 2, None, lambda inputs, i: batches[int(i)]))
    assert [(piece.steps, piece.batch_size) for piece in pieces] == [(1, None)] * 2
    for batch, piece in zip(batches, pieces):
        assert_equal(batch, piece.reader(piece.inputs, 0))
