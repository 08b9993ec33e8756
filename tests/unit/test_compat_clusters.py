"""The private parts of TensorFlow that `distribute` uses still exist and behave as expected."""

import inspect

import pytest
import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended
from tensorflow.python.eager import context

from unisono.compat.tensorflow_private import clusters

SERVICE = {
    "configure_coordination_service": {
        "service_type",
        "service_leader",
        "heartbeat_timeout_in_ms",
        "shutdown_barrier_timeout_in_ms",
        "coordinated_jobs",
    },
    "set_config_key_value": {"key", "value"},
    "get_config_key_value": {"key", "timeout_in_ms"},
    "delete_config_key_value": {"key"},
    "abort_collective_ops": {"code", "message"},
    "report_error_to_cluster": {"error_code", "error_message"},
}


@pytest.mark.parametrize("name", SERVICE)
def test_service_takes_these_arguments(name):
    parameters = inspect.signature(getattr(context.context(), name)).parameters
    assert set(parameters) >= SERVICE[name]


def test_no_coordination_service_runs_in_one_process():
    assert context.context().coordination_service is None


@pytest.mark.parametrize("own, expected", [(None, 64), (0, 64), (8, 8), (-1, -1)])
def test_collectives_are_sent_in_pieces_of_this_size_unless_the_program_says_another(
    monkeypatch, own, expected
):
    config = None if own is None else tf.compat.v1.ConfigProto(allow_soft_placement=True)
    if config is not None:
        config.experimental.recv_buf_max_chunk = own
    monkeypatch.setattr(context.context(), "_config", config)
    clusters.send_in_pieces(64)
    assert context.context().config.experimental.recv_buf_max_chunk == expected
    assert own is None or context.context()._config.allow_soft_placement


def test_jobs_are_named_and_counted():
    job = coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=2)
    assert (job.name, job.num_tasks) == ("worker", 2)


ARGUMENTS = {
    "_initialize_strategy": ["self", "cluster_resolver", "devices"],
    "_initialize_multi_worker": ["self", "cluster_resolver"],
    "_initialize_local_devices": ["self", "cluster_resolver", "worker_device"],
    "_create_variable": ["self", "next_creator", "kwargs"],
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_start_of_a_worker_has_these_steps(name):
    method = getattr(CollectiveAllReduceExtended, name)
    original = getattr(method, "__unisono_original__", method)
    assert list(inspect.signature(original).parameters) == ARGUMENTS[name]


def test_size_of_packs_is_read_from_the_options():
    source = inspect.getsource(CollectiveAllReduceExtended.__init__)
    assert "_communication_options" in source
    assert tf.distribute.experimental.CommunicationOptions(bytes_per_pack=8).bytes_per_pack == 8
