"""Every TensorFlow name that `tensorflow_private/parameter_servers.py` uses exists and behaves as expected."""

import inspect
import types

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.distribute import parameter_server_strategy_v2
from tensorflow.python.distribute.coordinator import cluster_coordinator, coordinator_context

from unisono.compat.tensorflow_graphs.graphs import effects
from unisono.compat.tensorflow_private.parameter_servers import (
    ShardedVariable,
    _PartialRecovery,
    save_as_whole_ones,
)


def source(function):
    return inspect.getsource(function)


def test_cluster_is_read_at_each_attempt_to_reconnect():
    handler = cluster_coordinator.WorkerPreemptionHandler
    assert "update_server_def(self._server_def)" in source(handler._preemption_handler)
    assert "self._server_def = server_def" in source(handler.__init__)
    assert "self.failure_handler = WorkerPreemptionHandler(" in source(cluster_coordinator.Cluster.__init__)
    assert isinstance(_PartialRecovery._server_def, property)


def test_lost_worker_may_be_missing_from_the_cluster_for_a_while():
    unknown = tf.errors.InvalidArgumentError(None, None, "/job:worker/replica:0/task:0 unknown device.")
    assert cluster_coordinator._is_worker_failure(unknown), "a skipped worker is retried"
    assert not cluster_coordinator._is_worker_failure(
        tf.errors.InvalidArgumentError(None, None, "/job:worker x")
    )


def test_worker_that_loses_its_connection_while_others_are_put_back_is_tried_again():
    handler = types.SimpleNamespace(_cluster=types.SimpleNamespace(closure_queue=types.SimpleNamespace()))
    handler._cluster.closure_queue._cancellation_mgr = types.SimpleNamespace(is_cancelled=False)
    gone = tf.errors.InvalidArgumentError(
        None, None, "Client for target /job:worker/replica:0/task:1 not found."
    )
    server = tf.errors.InvalidArgumentError(
        None, None, "Client for target /job:ps/replica:0/task:0 not found."
    )
    recovery = _PartialRecovery.__new__(_PartialRecovery)
    recovery.__dict__.update(handler.__dict__)
    recovery._validate_preemption_failure(gone)
    with pytest.raises(tf.errors.InvalidArgumentError):
        recovery._validate_preemption_failure(server)
    handler._cluster.closure_queue._cancellation_mgr.is_cancelled = True
    with pytest.raises(tf.errors.InvalidArgumentError):
        recovery._validate_preemption_failure(gone)
    names = set(
        inspect.signature(cluster_coordinator.WorkerPreemptionHandler._validate_preemption_failure).parameters
    )
    assert names == {"self", "e"}
    assert "_validate_preemption_failure(e)" in source(
        cluster_coordinator.WorkerPreemptionHandler.wait_on_failure
    )


def test_python_function_can_be_scheduled_and_knows_its_worker():
    assert list(inspect.signature(cluster_coordinator.Cluster.schedule).parameters) == [
        *("self", "function", "args", "kwargs")
    ]
    assert "self._cluster = Cluster(strategy)" in source(cluster_coordinator.ClusterCoordinator)
    assert "with_dispatch_context(worker)" in source(cluster_coordinator.Closure.execute_on)
    assert isinstance(inspect.getattr_static(coordinator_context.DispatchContext, "worker_index"), property)
    assert callable(coordinator_context.get_current_dispatch_context)


def test_queue_can_be_waited_for_with_a_bound_and_keeps_the_first_error():
    queue = cluster_coordinator._CoordinatedClosureQueue
    assert "timeout" in inspect.signature(queue.wait).parameters
    assert "self._error = e" in source(queue.mark_failed)
    assert "self.closure_queue = _CoordinatedClosureQueue()" in source(cluster_coordinator.Cluster.__init__)


def test_strategy_has_what_scheduling_needs():
    extended = parameter_server_strategy_v2.ParameterServerStrategyV2Extended
    assert "self._being_scheduled = False" in source(extended.__init__)
    strategy = parameter_server_strategy_v2.ParameterServerStrategyV2
    assert "self._cluster_resolver = cluster_resolver" in source(strategy.__init__)


def test_stateful_operations_are_distinguished_from_others():
    with tf.Graph().as_default(), effects() as found:
        stateful, _ = tf.raw_ops.Timestamp().op, tf.constant(1).op
    assert found == [stateful]


def test_split_variable_is_read_as_a_whole():
    save_as_whole_ones()
    whole = ShardedVariable([tf.Variable([1.0, 2.0]), tf.Variable([3.0])])
    assert np.asarray(whole).tolist() == [1, 2, 3]
