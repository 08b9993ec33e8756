"""Which errors of a lost worker are retried, and how a variable in parts is read."""

import types

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator

from unisono.compat.tensorflow_private.parameter_servers import _PartialRecovery
from unisono.compat.upstream_places import ShardedVariable
from unisono.distribute.parameter_servers.shards import describe_as_whole


def error(text):
    return tf.errors.InvalidArgumentError(None, None, text)


def test_lost_worker_may_be_missing_from_the_cluster_for_a_while():
    unknown = error("/job:worker/replica:0/task:0 unknown device.")
    assert cluster_coordinator._is_worker_failure(unknown), "a skipped worker is retried"
    assert not cluster_coordinator._is_worker_failure(error("/job:worker x"))


def test_worker_that_loses_its_connection_while_others_are_put_back_is_tried_again():
    handler = types.SimpleNamespace(_cluster=types.SimpleNamespace(closure_queue=types.SimpleNamespace()))
    handler._cluster.closure_queue._cancellation_mgr = types.SimpleNamespace(is_cancelled=False)
    gone = error("Client for target /job:worker/replica:0/task:1 not found.")
    server = error("Client for target /job:ps/replica:0/task:0 not found.")
    recovery = _PartialRecovery.__new__(_PartialRecovery)
    recovery.__dict__.update(handler.__dict__)
    recovery._validate_preemption_failure(gone)
    with pytest.raises(tf.errors.InvalidArgumentError):
        recovery._validate_preemption_failure(server)
    handler._cluster.closure_queue._cancellation_mgr.is_cancelled = True
    with pytest.raises(tf.errors.InvalidArgumentError):
        recovery._validate_preemption_failure(gone)


def test_split_variable_is_read_and_saved_as_a_whole(tmp_path):
    whole = describe_as_whole(ShardedVariable([tf.Variable([1.0, 2.0]), tf.Variable([3.0])]))
    assert np.asarray(whole).tolist() == [1, 2, 3]
    path = tf.train.Checkpoint(table=whole).write(str(tmp_path / "whole"))
    plain = tf.Variable([0.0, 0.0, 0.0])
    names = [name for name, _ in tf.train.list_variables(path)]
    assert "table/.ATTRIBUTES/VARIABLE_VALUE" in names
    tf.train.Checkpoint(table=plain).read(path).assert_consumed()
    assert plain.numpy().tolist() == [1, 2, 3]
    whole.assign([0.0, 0.0, 0.0])
    tf.train.Checkpoint(table=whole).read(path).assert_consumed()
    assert np.asarray(whole).tolist() == [1, 2, 3]
