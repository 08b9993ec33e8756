"""Joining a simulated cluster: the rendezvous over sockets, its timeouts, the TensorFlow internals it relies on."""

import contextlib
import dataclasses
import functools
import socket
import threading
import time

import pytest
import tensorflow as tf
from helpers import Clock, in_threads

from unisono.distribute import (
    auto_strategy,
    environment,
    is_chief,
    meeting,
    num_workers,
    simulate_devices,
    worker_index,
)
from unisono.distribute.workers import cluster_start
from unisono.distribute.workers import rendezvous as rendezvous_module
from unisono.distribute.workers.addresses import free_ports, read_line
from unisono.distribute.workers.agreement import check_same_everywhere, from_chief
from unisono.distribute.workers.cluster import Cluster, ClusterError
from unisono.distribute.workers.rendezvous import rendezvous

NEVER = 1e4  # seconds
GREETING = b"\0\0\0\4\0\0\0\0\0"  # of a gRPC server


def addresses(count):
    return tuple(f"127.0.0.1:{port}" for port in free_ports(count))


def worker(workers, index):
    return Cluster({"worker": tuple(workers)}, "worker", index)


def join(workers, seconds):
    """The rendezvous of worker 0."""
    rendezvous(worker(workers, 0), seconds)


def join_and_serve(cluster, arrived, done):
    """A worker: the rendezvous, then a server like TensorFlow's."""
    rendezvous(cluster, NEVER)
    arrived.release()
    with peer(cluster.address, GREETING):
        done.wait()


def test_rendezvous_returns_when_all_have_come():
    workers = addresses(3)
    arrived, done = threading.Semaphore(0), threading.Event()
    calls = [functools.partial(join_and_serve, worker(workers, i), arrived, done) for i in range(3)]
    with in_threads(*calls):
        came = [arrived.acquire(timeout=250) for _ in calls]
        done.set()
    assert all(came), "a worker did not arrive"


def test_rendezvous_names_the_worker_that_does_not_come():
    workers = addresses(2)
    with pytest.raises(TimeoutError, match=rf"worker 1 \({workers[1]}\) did not start within 0.5 s"):
        join(workers, 0.5)


def test_rendezvous_names_a_port_that_is_taken():
    workers = addresses(2)
    with socket.create_server(("127.0.0.1", int(workers[0].rpartition(":")[2]))):
        with pytest.raises(ClusterError, match="is in use by another process"):
            join(workers, 0.5)


def refusals(first, second, programs=("", "")):
    """The errors of two workers with these clusters; each keeps answering until both have their error."""
    calls = [
        rendezvous_module._Rendezvous(cluster, program, time.monotonic() + NEVER)
        for cluster, program in zip((first, second), programs)
    ]
    asked = [functools.partial(call.ask, 1 - n) for n, call in enumerate(calls)]
    with calls[0].answering(), calls[1].answering(), in_threads(*asked):
        for call in calls:
            with call._changed:
                call._changed.wait_for(lambda call=call: call._failure)
        for call in calls:
            call.over.set()
    return [call._failure for call in calls]


@pytest.mark.parametrize(
    ("workers", "programs", "said"),
    [
        ((2, 3), ("", ""), "with other workers"),
        ((2, 2), ("a", "b"), "runs another script"),
    ],
)
def test_rendezvous_rejects_a_peer_with_another_cluster_or_script_and_reports_both(workers, programs, said):
    known = addresses(3)
    told = refusals(*(worker(known[:count], index) for index, count in enumerate(workers)), programs)
    assert all(isinstance(each, ClusterError) and said in str(each) for each in told), told


def test_what_a_peer_said_is_read_by_a_worker_that_comes_late():
    """The peer exits two seconds after rejecting this worker, which may have waited longer for a CPU."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"refused\n")
        assert read_line(ours, time.monotonic() - 1.0) == b"refused\n"


@contextlib.contextmanager
def peer(address, words, slowly=False):
    """Listens at an address and sends the same text to all; endlessly, one byte at a time, if `slowly`."""
    done = threading.Event()

    def serve():
        while not done.is_set():
            with contextlib.suppress(OSError), server.accept()[0] as connection:
                connection.sendall(words)
                for _ in range(100):  # never a complete line
                    if slowly and not done.wait(0.1):
                        connection.sendall(b"x")
                if slowly:
                    done.wait()

    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))) as server:
        server.settimeout(0.05)
        with in_threads(serve):
            try:
                yield
            finally:
                done.set()


@pytest.mark.parametrize("words", [GREETING, b"SSH-2.0-OpenSSH\r\n", b"unisono \n", b""])
def test_rendezvous_takes_nobody_for_a_peer_who_does_not_say_so(words):
    workers = addresses(2)
    with (
        peer(workers[1], words),
        pytest.raises(TimeoutError, match=r"worker 1 \(.*\) did not start within 1 s"),
    ):
        join(workers, 1.0)


def test_rendezvous_ends_whatever_its_peers_do():
    workers = addresses(12)
    with contextlib.ExitStack() as stack:
        for address in workers[1:]:
            stack.enter_context(peer(address, b"", slowly=True))
        with pytest.raises(TimeoutError, match="worker 11 "):
            join(workers, 1.0)


@pytest.mark.parametrize(
    ("mark", "refusal"),
    [({"run": "0" * 16}, "belongs to another run"), ({"index": 0}, "says that it is worker 0")],
)
def test_rendezvous_rejects_a_worker_of_another_run_or_with_another_index(mark, refusal):
    workers = addresses(2)
    call = rendezvous_module._Rendezvous(worker(workers, 1), "", 0.0)
    theirs = dataclasses.replace(call._identity, **mark)
    with peer(workers[1], theirs.line()), pytest.raises(ClusterError, match=refusal):
        join(workers, NEVER)


def test_rendezvous_names_a_peer_that_does_not_reach_this_worker(monkeypatch):
    """The time runs out after the peer was seen."""
    workers, clock, compare = addresses(2), Clock(), rendezvous_module._Rendezvous._compare

    def compared(call, *who):
        compare(call, *who)
        if call._seen:
            with call._changed:
                clock.now = NEVER
                call._changed.notify_all()

    monkeypatch.setattr(rendezvous_module, "time", clock)
    monkeypatch.setattr(rendezvous_module._Rendezvous, "_compare", compared)
    call = rendezvous_module._Rendezvous(worker(workers, 1), "", 0.0)
    with (
        peer(workers[1], call._identity.line()),
        pytest.raises(TimeoutError, match="could not reach this worker"),
    ):
        join(workers, NEVER)


def test_replicas_per_worker_are_read_from_the_environment(monkeypatch):
    assert environment.replicas_per_worker() == 1
    monkeypatch.setenv("UNISONO_REPLICAS_PER_WORKER", "3")
    assert environment.replicas_per_worker() == 3


def test_auto_strategy_takes_all_devices_of_one_machine(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    strategy = auto_strategy()  # tests/conftest.py creates four logical devices
    assert isinstance(strategy, tf.distribute.MirroredStrategy)
    assert strategy.num_replicas_in_sync == 4


def test_auto_strategy_sends_a_server_to_its_command(monkeypatch):
    monkeypatch.setenv(
        "TF_CONFIG",
        '{"cluster": {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}, "task": {"type": "ps", "index": 0}}',
    )
    with pytest.raises(ClusterError, match=r"python -m unisono\.distribute\.server"):
        auto_strategy()


def test_wrong_tf_config_is_named_whoever_makes_the_strategy(monkeypatch):
    cluster_start.install()
    monkeypatch.setenv(
        "TF_CONFIG", '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 3}}'
    )
    with pytest.raises(ClusterError, match="from 0 to 0, as there are 1 tasks of type 'worker'"):
        tf.distribute.MultiWorkerMirroredStrategy()


def test_simulate_devices_says_when_it_is_too_late():
    tf.config.list_logical_devices()
    assert simulate_devices(4) == [f"/device:CPU:{i}" for i in range(4)]
    with pytest.raises(
        RuntimeError, match=r"`count` \(2\) cannot be set any more: TensorFlow already uses 4"
    ):
        simulate_devices(2)


def test_alone_everything_is_agreed(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert (is_chief(), num_workers(), worker_index()) == (True, 1, 0)
    assert from_chief([1.5]) == [1.5]
    check_same_everywhere({"rows": 3}, "fit")


def test_former_name_of_monitored_collective_works_and_warns():
    with pytest.warns(DeprecationWarning, match="monitored_collective"), meeting():
        pass
