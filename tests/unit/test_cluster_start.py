"""Joining a simulated cluster: the rendezvous over sockets, its timeouts, the TensorFlow internals it relies on."""

import contextlib
import functools
import json
import os
import re
import socket
import sys
import threading
import time
import types

import pytest
import tensorflow as tf
from helpers import in_threads
from rendezvous_clock import NEVER, RendezvousClock

from unisono.compat.versions import show_versions
from unisono.distribute import (
    auto_strategy,
    environment,
    is_chief,
    num_workers,
    simulate_devices,
    worker_index,
)
from unisono.distribute.workers import addresses as addresses_module
from unisono.distribute.workers import cluster_start
from unisono.distribute.workers import rendezvous as rendezvous_module
from unisono.distribute.workers.addresses import connect, free_ports, listens, split_address
from unisono.distribute.workers.agreement import check_same_everywhere, from_chief
from unisono.distribute.workers.cluster import Cluster, ClusterError
from unisono.distribute.workers.joining import ask_mpi, join_cluster
from unisono.distribute.workers.lines import hear_line, tell
from unisono.distribute.workers.places import Place
from unisono.distribute.workers.rendezvous import _digest, meet, rendezvous

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


def errors_of(*calls):
    """The errors that these calls of `meet` or `rendezvous` raise at the same time."""
    errors = [None] * len(calls)

    def run(number, call):
        try:
            call()
        except (ClusterError, TimeoutError) as error:
            errors[number] = error

    with in_threads(*(functools.partial(run, n, call) for n, call in enumerate(calls))):
        pass
    return errors


@pytest.mark.parametrize(
    ("workers", "programs", "said"),
    [((2, 3), ("", ""), "lists different workers"), ((2, 2), ("a", "b"), "runs a different script")],
)
def test_rendezvous_rejects_a_peer_with_another_cluster_or_script_and_reports_both(workers, programs, said):
    known = addresses(3)
    told = errors_of(
        *(
            functools.partial(rendezvous, worker(known[:count], index), NEVER, program)
            for index, (count, program) in enumerate(zip(workers, programs))
        )
    )
    assert all(isinstance(each, ClusterError) and said in str(each) for each in told), told


def test_what_a_peer_said_is_read_by_a_worker_that_comes_late():
    """The peer exits two seconds after rejecting this worker, which may have waited longer for a CPU."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b'{"error": "refused"}\n')
        assert hear_line(ours, bytearray(), time.monotonic() - 1.0) == {"error": "refused"}


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


@pytest.mark.parametrize("words", [GREETING, b"SSH-2.0-OpenSSH\r\n", b"[1]\n"])
@pytest.mark.long
def test_rendezvous_takes_nobody_for_worker_0_who_does_not_say_so(words):
    workers = addresses(2)
    with peer(workers[0], words):
        with pytest.raises(TimeoutError, match=r"worker 0 \(.*\) did not start within 0.5 s"):
            rendezvous(worker(workers, 1), 0.5)


@pytest.mark.long
def test_rendezvous_ends_whatever_its_peers_do():
    workers = addresses(2)
    with peer(workers[0], b"", slowly=True), pytest.raises(TimeoutError, match="worker 0 "):
        rendezvous(worker(workers, 1), 0.5)


def place(rank, size, meeting, job="", launcher="srun"):
    return Place(launcher, rank, size, (meeting,), job)


def test_processes_of_a_launcher_learn_the_addresses_of_all():
    """Also while strangers connect, of whom one says that it is a worker, and one is a worker that ends."""
    (meeting,) = addresses(1)
    found = {}

    def join(rank):
        number, found[rank] = meet(place(rank, 4, meeting), NEVER)
        assert number == rank

    def disturb():
        while not listens(meeting, 1.0):
            time.sleep(0.01)
        for words in (b"", b"GET / HTTP/1.1\r\n\r\n", b'{"unisono": 1, "rank": 2}\n', b"[]\n", b"x" * 300):
            with contextlib.suppress(OSError), connect(meeting, NEVER) as stranger:
                stranger.sendall(words)
        said = {
            "unisono": _digest(""),
            "cluster": _digest("[4, 4, 4]"),
            "program": "",
            "versions": show_versions(),
            "machine": "",
            "rank": 2,
            "port": 1,
            "network": "another",
            "devices": "",
        }
        with connect(meeting, NEVER) as former:
            former.sendall(json.dumps(said).encode() + b"\n")
            assert b"left" in former.recv(100), "it was taken for a worker"

    with in_threads(functools.partial(join, 0)):
        disturb()
        with in_threads(*(functools.partial(join, rank) for rank in (3, 1, 2))):
            pass
    assert len(found) == 4 and all(peers == found[0] for peers in found.values())
    assert found[0][0].address == meeting
    ports = {split_address(peer.address)[1] for peer in found[0]}
    assert len(ports) == 4 and all(peer.address.startswith("127.0.0.1:") for peer in found[0])


@pytest.mark.long
def test_late_processes_of_a_launcher_are_named_with_it_everywhere(monkeypatch):
    (meeting,) = addresses(1)
    clock = RendezvousClock(monkeypatch)
    calls = [functools.partial(meet, place(rank, 4, meeting), NEVER) for rank in (0, 2)]
    *late, _ = errors_of(*calls, functools.partial(clock.end, meeting, joined=1))
    for error in late:
        assert isinstance(error, TimeoutError)
        assert (
            "worker 1 (task 1 of 4, by srun), worker 3 (task 3 of 4, by srun) did not start within 10000 s"
            in str(error)
        )
    monkeypatch.undo()
    with pytest.raises(TimeoutError, match=rf"worker 0 \({meeting}, task 0 of 4, by srun\) .* refus"):
        meet(place(1, 4, meeting), 0.5)


def test_workers_of_other_versions_are_an_error_everywhere(monkeypatch):
    """Each call of the function stands for one worker; the second has another Keras."""
    (meeting,) = addresses(1)
    mine, other = show_versions(), re.sub("Keras [^,]*", "Keras 2.15.0", show_versions())
    assert re.fullmatch(r"Unisono \d.*, Keras \d.*, TensorFlow \d.*, Python 3\.\d+", mine)
    said = iter([mine, other])
    monkeypatch.setattr(rendezvous_module, "show_versions", lambda: next(said))
    host = functools.partial(meet, place(0, 2, meeting), NEVER)

    def guest():
        while not listens(meeting, 1.0):
            time.sleep(0.01)
        meet(place(1, 2, meeting), NEVER)

    for error in errors_of(host, guest):
        assert isinstance(error, ClusterError)
        assert (
            f"worker 1 at 127.0.0.1 has {other}, and worker 0 at {meeting} has {mine}: install the same"
            in str(error)
        )


def test_worker_that_says_no_version_is_of_an_older_one():
    (meeting,) = addresses(1)
    said = {"unisono": _digest(""), "cluster": _digest("[2, 2, 2]"), "program": "", "machine": ""}

    def guest():
        while not listens(meeting, 1.0):
            time.sleep(0.01)
        with connect(meeting, NEVER) as connection:
            tell(connection, {**said, "rank": 1, "port": 1, "network": "", "devices": ""})
            assert "an older Unisono" in hear_line(connection, bytearray(), time.monotonic() + NEVER)["error"]

    host, _ = errors_of(functools.partial(meet, place(0, 2, meeting), NEVER), guest)
    assert "worker 1 at 127.0.0.1 has an older Unisono, and worker 0" in str(host)


def test_machine_that_dies_in_the_meeting_is_named_and_may_come_again(monkeypatch):
    """Its connection stays open: the first worker 1 says nothing more, and the second one is taken in its place."""
    (meeting,) = addresses(1)
    clock = RendezvousClock(monkeypatch)

    def come(rank, stays):
        said = {"unisono": _digest(""), "cluster": _digest("[3, 3, 3]"), "program": "", "machine": ""}
        said["versions"] = show_versions()
        connection = stays.enter_context(connect(meeting, NEVER))
        tell(connection, {**said, "rank": rank, "port": 1, "network": "", "devices": ""})
        heard = bytearray()
        assert "left" in hear_line(connection, heard, clock.now + NEVER)
        return connection, heard

    with contextlib.ExitStack() as stays:

        def dies():
            while not listens(meeting, 1.0):
                time.sleep(0.01)
            return come(1, stays)

        def dies_and_time_passes():
            silent = dies()
            assert hear_line(*silent, clock.now + NEVER) == {"ready": True}
            assert hear_line(*silent, clock.now + NEVER) == {}, "it is no longer waited for"
            clock.end(meeting, joined=2)

        calls = [functools.partial(meet, place(rank, 3, meeting), NEVER) for rank in (0, 2)]
        *late, _ = errors_of(*calls, dies_and_time_passes)
    for error in late:
        assert isinstance(error, TimeoutError)
        assert "worker 1 (task 1 of 3, by srun) did not start within 10000 s" in str(error)
        assert "Worker 1 at 127.0.0.1:1 joined, then fell silent." in str(error)

    with contextlib.ExitStack() as stays:
        calls = [functools.partial(meet, place(rank, 3, meeting), NEVER) for rank in range(3)]

        def come_again():
            dies()
            calls[1]()

        assert errors_of(calls[0], calls[2], come_again) == [None] * 3


def test_process_of_another_run_is_rejected_and_the_others_go_on_without_it(monkeypatch):
    (meeting,) = addresses(1)
    clock = RendezvousClock(monkeypatch)

    def theirs():
        try:
            meet(place(1, 2, meeting, "b"), NEVER)
        finally:
            clock.end(meeting, joined=0)

    late, rejected = errors_of(functools.partial(meet, place(0, 2, meeting, "a"), NEVER), theirs)
    assert isinstance(rejected, ClusterError) and "belongs to a different run" in str(rejected)
    assert isinstance(late, TimeoutError) and "A process of another run connected from 127.0.0.1" in str(late)


def test_two_processes_with_one_rank_are_an_error_for_all():
    (meeting,) = addresses(1)
    calls = [functools.partial(meet, place(rank, 4, meeting), NEVER) for rank in (0, 1, 1)]
    for error in errors_of(*calls):
        assert isinstance(error, ClusterError) and "says that it is worker 1, as another process does" in str(
            error
        )


@pytest.mark.parametrize("launcher, fix", [("srun", "set MASTER_PORT"), ("launch", "in --rdzv-endpoint")])
def test_port_of_rank_0_that_is_taken_is_named(launcher, fix):
    (meeting,) = addresses(1)
    with socket.create_server(("127.0.0.1", split_address(meeting)[1])):
        with pytest.raises(ClusterError, match=f"{meeting}.* in use .* {fix}"):
            meet(place(0, 2, meeting)._replace(launcher=launcher), 1.0)


def test_process_that_is_bound_to_one_of_several_cores_is_warned_of(monkeypatch):
    here = Place("mpirun", 1, 2, (), "")
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 7})
    with pytest.raises(ClusterError, match="set MASTER_ADDR"):
        join_cluster(here)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    with pytest.warns(UserWarning, match="mpirun has bound this process to one of 8 cores.* --bind-to none"):
        with pytest.raises(ClusterError, match="set MASTER_ADDR"):
            join_cluster(here)


def test_unknown_rank_0_is_asked_of_mpi_where_mpi4py_is_installed(monkeypatch):
    (meeting,) = addresses(1)
    here = Place("mpirun", 1, 2, (), "")
    with pytest.raises(ClusterError, match=r"set MASTER_ADDR .* and MASTER_PORT"):
        ask_mpi(here)
    world = types.SimpleNamespace(rank=1, size=2, bcast=lambda mine, root: meeting)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", types.SimpleNamespace(COMM_WORLD=world))
    with in_threads(functools.partial(meet, place(0, 2, meeting), NEVER)):
        assert meet(here._replace(addresses=ask_mpi(here)), NEVER)[1][0].address == meeting
    world.size = 1  # mpi4py of another MPI
    with pytest.raises(ClusterError, match="MASTER_ADDR"):
        ask_mpi(here)


def test_worker_of_the_same_network_has_the_name_of_worker_0_whatever_address_a_router_shows(monkeypatch):
    """Behind a router that sends connections to its own address back, worker 1 comes from the router."""
    (meeting,) = addresses(1)
    shown = rendezvous_module._Host._add
    monkeypatch.setattr(
        rendezvous_module._Host, "_add", lambda self, said, c, _: shown(self, said, c, "192.0.2.1")
    )
    with in_threads(functools.partial(meet, place(0, 2, meeting), NEVER)):
        assert meet(place(1, 2, meeting), NEVER)[1][1].address.startswith("127.0.0.1:")
    monkeypatch.setattr(rendezvous_module, "identify_network", iter("ab").__next__)
    (meeting,) = addresses(1)
    with in_threads(functools.partial(meet, place(0, 2, meeting), NEVER)):
        assert meet(place(1, 2, meeting), NEVER)[1][1].address.startswith("192.0.2.1:")


def test_address_at_which_worker_0_does_not_reach_itself_is_an_error_on_all(monkeypatch):
    """As that of a router which sends nothing back; TensorFlow would wait for itself."""
    (meeting,) = addresses(1)
    behind = functools.partial(ConnectionRefusedError, 111, "Connection refused")

    def refuse(address, seconds):
        raise behind()

    monkeypatch.setattr(addresses_module, "is_here", lambda _: False)
    monkeypatch.setattr(addresses_module, "connect", refuse)
    for error in errors_of(*(functools.partial(meet, place(rank, 2, meeting), NEVER) for rank in range(2))):
        assert isinstance(error, ClusterError)
        assert f"worker 0 does not reach itself at {meeting} ([Errno 111] Connection refused)" in str(error)


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
    with pytest.raises(RuntimeError, match=r"`count` \(2\) can no longer be set: TensorFlow already uses 4"):
        simulate_devices(2)


def test_alone_everything_is_agreed(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert (is_chief(), num_workers(), worker_index()) == (True, 1, 0)
    assert from_chief([1.5]) == [1.5]
    check_same_everywhere({"rows": 3}, "fit")


def test_gpus_that_slurm_has_bound_to_tasks_are_told_apart(monkeypatch):
    for variables, devices in (
        ({}, ["0", "0"]),
        ({"SLURM_GPUS_PER_TASK": "1"}, ["0 of task 0", "0 of task 1"]),
    ):
        for name, value in {**variables, "CUDA_VISIBLE_DEVICES": "0"}.items():
            monkeypatch.setenv(name, value)
        (meeting,) = addresses(1)
        with in_threads(functools.partial(meet, place(1, 2, meeting), NEVER)):
            assert [peer.devices for peer in meet(place(0, 2, meeting), NEVER)[1]] == devices
