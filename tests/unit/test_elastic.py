"""Elastic launches in one process: ranks at the exchange, machines that wait, and what launcher and `fit` make of it."""

import functools
import json
import time

import keras
import numpy as np
import pytest
from helpers import in_threads
from rendezvous_clock import NEVER, RendezvousClock

import unisono
from unisono.commands import launch as launch_command
from unisono.distribute import environment
from unisono.distribute.launcher import supervisor
from unisono.distribute.launcher.error_attribution import ProcessState, Restarts, attribute
from unisono.distribute.launcher.tasks import RequestedCluster, Task, plan
from unisono.distribute.workers import newcomers, rendezvous
from unisono.distribute.workers.addresses import claim, free_ports
from unisono.distribute.workers.cluster import find_hosts
from unisono.distribute.workers.error_text import Blame
from unisono.distribute.workers.places import Machines, Place, read_place
from unisono.distribute.workers.records import ErrorRecord, Record, Recorder, error_record
from unisono.distribute.workers.rendezvous import meet


@pytest.fixture
def endpoint():
    return f"127.0.0.1:{free_ports(1)[0]}"


def let_machine_wait(monkeypatch, waits):
    """Whether worker 0 has heard a machine that waits to join."""
    monkeypatch.setattr(newcomers, "_waits", waits)


@pytest.fixture
def listening(monkeypatch):
    """What listens for newcomers after `meet`; a worker's process does until it ends."""
    found = []

    def hear(listener, *arguments, **options):
        found.append((listener, hear_newcomers(listener, *arguments, **options)))
        return found[-1][1]

    hear_newcomers = rendezvous.hear_newcomers
    monkeypatch.setattr(rendezvous, "hear_newcomers", hear)
    let_machine_wait(monkeypatch, False)
    yield found
    while found:
        end(found)


def end(listening):
    """What the end of the process does."""
    listener, ticker = listening.pop()
    ticker.stop(10.0)
    listener.close()


def seat(endpoint, machine, number, most=3, fewest=1, each=2):
    """Worker `number` of a machine; machine 0 has the endpoint."""
    rank = number + each * bool(machine)
    elastic = Machines(fewest * each, each, f"machine {machine}")
    return Place("launch", rank, most * each, (endpoint,), "", elastic=elastic)


def test_exchange_gives_ranks_to_whole_machines_and_lets_others_wait(endpoint, listening, monkeypatch):
    """Three machines of two workers may come: two do, and half of a third, which joins at the next start."""
    clock = RendezvousClock(monkeypatch)
    found, late = {}, {}

    def join(machine, number):
        found[machine, number] = meet(seat(endpoint, machine, number), NEVER)

    def join_late():
        late["rank"], late["peers"] = meet(seat(endpoint, 2, 1), NEVER)

    def start_again():
        while not newcomers._waits:  # until worker 0 has heard the machine that waits
            time.sleep(0.05)
        first = dict(found)
        end(listening)
        with in_threads(
            *(functools.partial(join, m, n) for m in range(3) for n in range(2) if (m, n) != (2, 1))
        ):
            pass
        again.update(first)

    again = {}
    with in_threads(join_late):
        with in_threads(*(functools.partial(join, m, n) for m, n in ((1, 1), (0, 1), (1, 0), (0, 0)))):
            clock.end(endpoint, joined=4)
        start_again()
    ranks = {key: rank for key, (rank, _) in again.items()}
    assert ranks == {(0, 0): 0, (0, 1): 1, (1, 0): 2, (1, 1): 3}
    (peers,) = {tuple(peers) for _, peers in again.values()}
    assert len({peer.address for peer in peers}) == 4
    assert endpoint not in {peer.address for peer in peers}, "newcomers are heard there"
    assert late["rank"] in (3, 5) and len(late["peers"]) == 6, "it joined when all started again"


def test_too_few_machines_end_with_75_and_say_so(endpoint, listening, capfd, monkeypatch):
    clock = RendezvousClock(monkeypatch)
    calls, statuses = [functools.partial(meet, seat(endpoint, m, 0, 3, 3, 1), NEVER) for m in (0, 1)], []

    def status(call):
        with pytest.raises(SystemExit) as exit:
            call()
        statuses.append(exit.value.code)

    with in_threads(*(functools.partial(status, call) for call in calls)):
        clock.end(endpoint, joined=1)
    assert statuses == [75, 75] and not listening
    assert capfd.readouterr().err.count("2 of at least 3 workers (1 on a machine) joined within 10000 s") == 2


@pytest.mark.parametrize(("spent", "left"), [(0.0, 30.0), (18.0, 12.0), (1e3, rendezvous.ASK)])
def test_lost_endpoint_ends_a_worker_within_the_timeout_since_the_loss(
    spent, left, endpoint, capfd, monkeypatch, stop_clock
):
    clock = stop_clock(rendezvous, 1e6)
    monkeypatch.setenv(environment.SINCE, str(clock.now - spent))
    with pytest.raises(SystemExit) as exit:
        meet(seat(endpoint, 1, 0), 30.0)
    assert exit.value.code == 75 and clock.now - 1e6 == pytest.approx(left, abs=rendezvous._PAUSE)
    printed = capfd.readouterr().err
    assert f"worker 0 ({endpoint}, task 0 of 6, by launch) did not start within 30 s" in printed


def test_machine_of_another_run_or_program_is_refused_while_training_runs(endpoint, listening):
    meet(seat(endpoint, 0, 0, 2, 1, 1), 0.5, "program")
    with pytest.raises(environment.ClusterError, match="another run uses"):
        meet(seat(endpoint, 1, 0, 2, 1, 1), NEVER, "other")
    assert not newcomers._waits


def test_plan_of_an_elastic_launch_leaves_ranks_to_the_exchange():
    def place_of(**options):
        tasks = plan(
            RequestedCluster(workers=2, nnodes=4, fewest_nodes=1, endpoint="node0:29500", **options), ["t.py"]
        )
        assert [task.name for task in tasks] == ["process-0", "process-1"]
        return [read_place(task.env) for task in tasks], tasks[0].aliases

    (first, second), aliases = place_of(node_rank=0)
    assert (first.rank, second.rank, first.size, first.elastic[:2]) == (0, 1, 8, (2, 2))
    assert first.elastic.name == second.elastic.name and "leader" in aliases
    (other, _), aliases = place_of(node_rank=1)
    assert other.rank == 2 and not aliases and other.elastic.name != first.elastic.name


def layout_of(monkeypatch, *arguments):
    found = {}
    monkeypatch.setattr(supervisor.Supervisor, "run", lambda self: found.update(vars(self)) or 0)
    assert launch_command.main(["--rdzv-endpoint", *arguments, __file__]) == 0
    return found["layout"], found["most_restarts"]


def test_first_launcher_of_the_machine_with_the_endpoint_is_machine_0(endpoint, monkeypatch):
    assert layout_of(monkeypatch, endpoint, "--nnodes", "2:4")[0].node_rank == 0
    held = claim(endpoint)
    layout, restarts = layout_of(monkeypatch, endpoint, "--nnodes", "2:4")
    assert (layout.fewest_nodes, layout.nnodes, layout.node_rank, restarts) == (2, 4, 1, 3)
    assert layout_of(monkeypatch, endpoint, "--nnodes", "2:4", "--node-rank", "0")[0].node_rank == 0
    held.close()
    assert layout_of(monkeypatch, "192.0.2.1:29500", "--nnodes", "1:2")[0].node_rank == 1
    assert layout_of(monkeypatch, endpoint, "--nnodes", "1:1")[0].fewest_nodes == 0


@pytest.mark.parametrize("value", ["3:2", "0:2", "1:", ":2", "1:2:3", "one"])
def test_launch_names_a_wrong_range_of_machines(value, capsys):
    with pytest.raises(SystemExit):
        launch_command.main(["--nnodes", value, "--rdzv-endpoint", "a:1", __file__])
    assert "--nnodes" in capsys.readouterr().err


def test_restarts_of_others_are_not_counted():
    restarts = Restarts(1)
    assert [restarts.next("same", counted=False) for _ in range(3)] == [1.0] * 3
    assert (restarts.next("same"), restarts.next("other")) == (1.0, None)


def test_per_replica_batch_size_is_refused_before_the_first_step(monkeypatch):
    model = unisono.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    monkeypatch.setenv(environment.ELASTIC, "1 1 name")
    x = np.ones((4, 2))
    with pytest.raises(ValueError, match="per_replica_batch_size=2 is invalid in an elastic launch"):
        model.fit(x, x[:, :1], per_replica_batch_size=2, verbose=0)
    assert model.optimizer.iterations == 0


def test_fit_saves_at_the_end_of_an_epoch_and_exits_with_85_where_a_machine_waits(monkeypatch, tmp_path):
    monkeypatch.setenv(environment.ELASTIC, "1 1 name")
    x = np.random.default_rng(1).normal(size=(6, 2))

    def train(*callbacks, save_freq="epoch"):
        keras.utils.set_random_seed(1)
        model = unisono.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
        backup = unisono.callbacks.BackupAndRestore(tmp_path / str(save_freq), save_freq)
        model.fit(x, x[:, :1], batch_size=2, epochs=2, verbose=0, callbacks=[backup, *callbacks])
        return model, backup

    plain = train()[0].get_weights()
    for save_freq, begin in (("epoch", (1, 0)), (2, (0, 2)), (False, (1, 0))):
        let_machine_wait(monkeypatch, True)
        with pytest.raises(SystemExit) as exit:
            train(save_freq=save_freq)
        assert exit.value.code == environment.REJOIN == 85
        let_machine_wait(monkeypatch, False)
        model, backup = train(save_freq=save_freq)
        assert (backup.initial_epoch, backup.initial_step) == begin
        for one, other in zip(model.get_weights(), plain):
            assert one.tobytes() == other.tobytes()


def test_hosts_of_lost_workers_are_found_unless_they_are_on_this_machine(monkeypatch):
    workers = ["10.0.0.1:4000", "10.0.0.2:4001", "127.0.0.1:4002"]
    monkeypatch.setenv(
        "TF_CONFIG", json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": 2}})
    )
    assert find_hosts(
        Blame(("leader", "worker 0", "worker 2"), ("worker 1", "worker 9", "stage 0", "10.0.0.3:1"))
    ) == ("lost contact: worker 0 is at 10.0.0.1:4000, worker 1 is at 10.0.0.2:4001")
    assert find_hosts(Blame((), ("worker 1",))) == "worker 1 is at 10.0.0.2:4001"
    assert find_hosts(None) == find_hosts(Blame()) == ""
    lost = error_record(RuntimeError("lost contact with worker 1: worker 2 has waited 11 s"))
    assert lost.text.endswith("(lost contact: worker 1 is at 10.0.0.2:4001)")
    passed_on = error_record(RuntimeError(f"worker 0 failed: {lost.kind}: {lost.text}"))
    assert passed_on.blame == Blame(("worker 1",))
    assert passed_on.text == f"worker 0 failed: {lost.kind}: {lost.text}"
    monkeypatch.setenv("TF_CONFIG", "no JSON")
    assert find_hosts(Blame(("worker 1",))) == "", "the error of TF_CONFIG itself is recorded"


def test_process_whose_number_is_known_from_its_record_is_blamed_and_else_another_machine():
    """Of two processes of this machine, the one that the other reports hangs: as worker 3, which only its record says."""
    tasks = [Task(f"process-{i}", (), {}) for i in range(2)]
    error = ErrorRecord("UnavailableError", "lost contact with worker 3", "", 1.0, Blame(("worker 3",)))
    reports = ProcessState(tasks[0], code=1, ended=2.0, record=Record("worker 2", 1, 1.0, error=error))
    (found,) = attribute([reports, ProcessState(tasks[1], record=Record("worker 3", 2, 1.0))], 9.0)
    assert (found.name, found.hangs, found.of_others) == ("process-1", True, False)
    (found,) = attribute([reports, ProcessState(tasks[1], record=Record("worker 4", 2, 1.0))], 9.0)
    assert (found.name, found.of_others) == ("process-0", True)
    cut = ErrorRecord(
        "InternalError", "worker 0 failed", "", 1.0, Blame(("worker 2", "worker 3"))
    )  # itself, too
    (found,) = attribute([ProcessState(tasks[0], code=1, record=Record("worker 2", 1, 1.0, error=cut))], 9.0)
    assert found.of_others


def test_record_has_the_number_that_a_worker_gets_later(tmp_path):
    recorder = Recorder()
    for task in ("", "worker 3", ""):
        recorder.start(None, task)
    assert recorder._record.task == "worker 3"
