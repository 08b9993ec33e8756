"""Which process failed first, from what is known of each process."""

import dataclasses

import pytest

from unisono.distribute.launcher.error_attribution import ProcessState, Restarts, attribute, how_it_ended
from unisono.distribute.launcher.tasks import Task
from unisono.distribute.workers.error_text import Blame
from unisono.distribute.workers.records import ErrorRecord, Record

NOW = 1000.0
LOST_1 = (
    "Collective ops is aborted by: lost contact with worker 1: worker 0 has waited 11 s at step boundary 59"
)
RESET_0 = (
    "Collective ops is aborted by: recvmsg:Connection reset by peer\n"
    "Additional GRPC error information from remote target /job:worker/replica:0/task:0 while calling "
    "/tensorflow.WorkerService/RecvBuf:"
)


def recorded(error=None, position="epoch 1, step 20", alive=NOW, since=0.0, place="save (train.py:7)"):
    return Record("", 1, alive, position, since=since, place=place, error=error)


def error(
    text, time=NOW, lost=(), reported_by=(), consequence=False, kind="ValueError", place="f (train.py:3)"
):
    blame = Blame(tuple(lost), tuple(reported_by)) if lost or reported_by or consequence else None
    return ErrorRecord(kind, text, place, time, blame)


def worker(number, **known):
    aliases = {f"worker {number}", f"127.0.0.1:{number}"} | ({"leader"} if number == 0 else set())
    return ProcessState(Task(f"worker-{number}", (), {}, aliases=frozenset(aliases)), **known)


def server(name, role="server", **known):
    kind, _, number = name.partition("-")
    aliases = frozenset({f"{kind} {number}", f"127.0.0.1:5{number}"})
    return ProcessState(Task(name, (), {}, role, aliases), **known)


def the_chief(*aliases, **known):
    return ProcessState(Task("chief", (), {}, aliases=frozenset(aliases)), **known)


def the_first(*witnesses):
    return attribute(witnesses, NOW)[0]


def test_nobody_who_failed_is_no_failure():
    assert attribute([worker(0), worker(1, code=0)], NOW) == []


def test_killed_worker_is_named_and_not_the_survivor_that_noticed():
    survivor = worker(1, code=1, ended=990.0, lines=RESET_0.splitlines())
    failure = the_first(worker(0, code=-9, ended=NOW), survivor)
    assert (failure.name, failure.what, failure.status) == ("worker-0", "was killed by SIGKILL", 137)


def test_own_error_is_named_with_its_place_and_the_step_though_it_ends_last():
    mine = recorded(error("no such column", time=990.0))
    told = recorded(error("worker 1 failed: ValueError", time=990.1, reported_by=["worker 1"]))
    failure = the_first(worker(0, code=1, ended=991.0, record=told), worker(1, record=mine))
    assert failure.name == "worker-1"
    assert failure.what == "raised ValueError: no such column, in f (train.py:3), at epoch 1, step 20"


def test_first_of_several_own_failures_is_the_earliest_and_the_others_follow():
    found = attribute([worker(n, code=-9, ended=900.0 + t) for n, t in ((0, 3.0), (1, 1.0), (2, 2.0))], NOW)
    assert [failure.name for failure in found] == ["worker-1", "worker-2", "worker-0"]


def test_hung_worker_is_named_by_the_survivors_with_the_place_where_it_was_seen():
    lost = recorded(error(LOST_1, lost=["worker 1"]))
    found = attribute([worker(0, record=lost), worker(1, record=recorded(since=988.0)), worker(2)], NOW)
    assert [failure.name for failure in found] == ["worker-1"]
    assert found[0].what.startswith("hangs or is too slow, as worker-0 found, in save (train.py:7)")
    assert found[0].hangs and found[0].status == 1 and found[0].error is None


def test_hung_worker_that_gives_no_sign_of_life_is_said_to_give_none():
    lost = recorded(error(LOST_1, lost=["worker 1"]))
    failure = the_first(worker(0, record=lost), worker(1, record=recorded(alive=NOW - 12)))
    assert "has sent no heartbeat for 12 s" in failure.what


@pytest.mark.parametrize("lost", [0, 1])
def test_stopped_worker_is_named_also_if_it_is_the_chief(lost):
    names = ["leader"] if lost == 0 else ["worker 1"]
    survivor = worker(1 - lost, code=1, ended=NOW, record=recorded(error("lost", lost=names)))
    failure = the_first(survivor, worker(lost, stopped=NOW - 10))
    assert failure.name == f"worker-{lost}"
    assert failure.what.startswith("is stopped (SIGSTOP) and has been for 10 s")


def test_lost_leader_that_is_not_stopped_is_the_chief():
    lost = recorded(error("Deadline Exceeded", lost=["leader"]))
    assert the_first(worker(0), worker(1, record=lost)).name == "worker-0"


def test_worker_that_ended_early_with_status_0_is_named_and_the_status_is_not_0():
    lost = recorded(error(LOST_1, lost=["worker 1"]))
    failure = the_first(worker(0, code=1, ended=NOW, record=lost), worker(1, code=0, ended=980.0))
    assert (failure.name, failure.status) == ("worker-1", 1)
    assert failure.what == "exited early, with status 0, while worker-0 still needed it"


def test_worker_that_ended_in_order_is_not_blamed_for_what_others_do_later():
    failure = the_first(worker(0, code=0, ended=900.0), worker(1, code=3, ended=NOW))
    assert (failure.name, failure.what) == ("worker-1", "exited with status 3")


def test_survivors_that_blame_each_other_lead_to_the_one_who_blames_nobody():
    zero = recorded(
        error("worker 1 failed: ... lost contact with worker 2", lost=["worker 2"], reported_by=["worker 1"])
    )
    one = recorded(error("lost contact with worker 2", lost=["worker 2"]))
    failure = the_first(worker(0, code=1, record=zero), worker(1, code=1, record=one), worker(2))
    assert failure.name == "worker-2"


def test_error_of_a_survivors_handler_is_no_cause_if_someone_hangs_since_before():
    lost = recorded(error(LOST_1, lost=["worker 1"]))
    handler = worker(2, code=1, ended=NOW)  # it caught the error and called sys.exit(1)
    failure = the_first(
        worker(0, code=1, ended=NOW, record=lost), handler, worker(1, record=recorded(since=988.0))
    )
    assert failure.name == "worker-1"


def test_only_consequences_give_a_failure_that_is_not_sure():
    lost = recorded(error("a worker hangs in it", consequence=True))
    failure = the_first(worker(0, code=1, ended=NOW, record=lost), worker(1))
    assert (failure.name, failure.sure, failure.error) == ("worker-0", False, None)


@pytest.mark.parametrize(("code", "collectives", "sure"), [(3, 5, False), (3, 0, True), (-9, 5, True)])
def test_status_of_its_own_choice_is_not_sure_among_peers(code, collectives, sure):
    known = dataclasses.replace(recorded(), collectives=collectives)
    assert the_first(worker(0, code=code, ended=NOW, record=known), worker(1)).sure is sure


def test_text_of_a_process_without_a_record_is_read_too():
    lines = ["Traceback", f"UnavailableError: {LOST_1}"]
    assert the_first(worker(0, code=1, ended=NOW, lines=lines), worker(1)).name == "worker-1"
    assert the_first(worker(0, code=-9, ended=NOW, lines=lines), worker(1)).name == "worker-0"


def test_error_of_the_program_that_a_healthy_server_passed_on_is_the_programs():
    passed_on = recorded(error("the labels are wrong", reported_by=["worker 0"]))
    chief = the_chief("chief 0", "leader", record=passed_on)
    failure = the_first(server("worker-0", role="spare"), chief)
    assert (failure.name, failure.sure) == ("chief", True)
    assert failure.what.startswith("raised ValueError: the labels are wrong")


@pytest.mark.parametrize("known", [{"stopped": 980.0}, {"code": -9, "ended": 985.0}, {}])
def test_parameter_server_is_named_by_its_address(known):
    text = "The parameter server 0 at 127.0.0.1:50 listens but has done nothing for 12 s"
    chief = the_chief("chief 0", record=recorded(error(text, lost=["127.0.0.1:50"])))
    assert the_first(server("ps-0", **known), server("ps-1"), chief).name == "ps-0"


def test_stopped_spare_of_which_the_coordinator_complains_is_named():
    text = "The worker 0 at 127.0.0.1:50 listens but does nothing"
    chief = the_chief("chief 0", record=recorded(error(text, lost=["127.0.0.1:50"])))
    failure = the_first(server("worker-0", role="spare", stopped=980.0), chief)
    assert (failure.name, failure.what) == ("worker-0", "is stopped (SIGSTOP) and has been for 20 s")


def test_server_that_ends_with_0_while_scripts_run_has_failed():
    assert the_first(server("ps-0", code=0, ended=NOW), worker(0)).name == "ps-0"


def test_spare_that_was_killed_is_nobodys_failure():
    assert attribute([server("worker-0", role="spare", code=-9, ended=900.0), worker(0)], NOW) == []


def test_error_that_speaks_of_itself_alone_is_its_own():
    unhealthy = recorded(error("tasks are unhealthy", lost=["worker 1"]))
    assert the_first(worker(0), worker(1, code=1, record=unhealthy)).sure


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [("loss is 3.25 at 0x7f2a", "loss is 3.5 at 0x11", True), ("loss is nan", "loss is inf", False)],
)
def test_same_error_is_the_same_whatever_numbers_it_has(one, other, same):
    first, second = (
        the_first(worker(0, code=1, record=recorded(error(text)))).error for text in (one, other)
    )
    assert (first == second) is same


def test_same_error_at_another_step_is_another():
    at = [recorded(error("no"), position=f"epoch 1, step {step}") for step in (4, 5)]
    first, second = (the_first(worker(0, code=1, record=each)).error for each in at)
    assert first != second


@pytest.mark.parametrize(("code", "counts"), [(3, True), (-11, True), (-6, True), (-9, False), (-15, False)])
def test_signal_from_outside_is_not_the_programs_error(code, counts):
    assert (the_first(worker(0, code=code, record=recorded())).error is not None) is counts
    assert the_first(worker(0, code=code)).error is None  # the step is unknown


def test_restarts_wait_longer_each_time_up_to_a_minute():
    restarts = Restarts(9)
    assert [restarts.next(None) for _ in range(10)] == [1, 2, 4, 8, 16, 32, 60, 60, 60, None]
    assert not restarts.repeated


def test_restarts_end_where_two_attempts_fail_alike():
    restarts = Restarts(9)
    assert [restarts.next(each) for each in ("a", "b", "a", "a")] == [1, 2, 4, None]
    assert restarts.repeated


@pytest.mark.parametrize(
    ("code", "words"),
    [(3, "exited with status 3"), (-9, "was killed by SIGKILL"), (-250, "was killed by signal 250")],
)
def test_how_it_ended_says_status_or_signal(code, words):
    assert how_it_ended(code) == words


def test_failure_never_has_status_0():
    everything = [
        dataclasses.replace(worker(0, code=code), ended=NOW, record=record)
        for code in (None, 0, 1, -9)
        for record in (recorded(error("x")), recorded(error("x", lost=["worker 1"])))
    ]
    assert all(failure.status for each in everything for failure in attribute([each, worker(1)], NOW))
