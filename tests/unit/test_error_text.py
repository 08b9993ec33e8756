"""Which process an error is about: our own messages, and TensorFlow's from workers that lost a peer."""

import pytest

from unisono.distribute.workers.error_text import Blame, blame_in

REMOTE = "Additional GRPC error information from remote target /job:worker/replica:0/task:1 while calling /tensorflow.X:"
SENTENCES = [
    (
        "Collective ops is aborted by: lost contact with worker 1 and worker 3: worker 0 has waited 11 s",
        ("worker 1", "worker 3"),
        (),
    ),
    (
        "worker 1 (127.0.0.1:1234), worker 2 (h:5) did not start within 3 s: find out why",
        ("worker 1", "worker 2"),
        (),
    ),
    ("worker 2 did not reach fit within 12 s: every worker must run", ("worker 2",), ()),
    ("Collective ops is aborted by: worker 0 failed: ValueError: my own mistake", (), ("worker 0",)),
    (
        "Error reported from /job:worker/task:1: The following tasks are unhealthy (stopped sending heartbeats):\n"
        "/job:worker/replica:0/task:1\nThe tasks have crashed.",
        ("worker 1",),
        ("worker 1",),
    ),
    (f"Collective ops is aborted by: Socket closed\n{REMOTE}", ("worker 1",), ()),
    (f"recvmsg:Connection reset by peer\n{REMOTE}", ("worker 1",), ()),
    (f"assertion failed: [labels]\n{REMOTE}", (), ("worker 1",)),
    (
        f"aborted by: recvmsg:Connection timed out\n{REMOTE}\n{REMOTE.replace('task:1', 'task:2')}\n"
        f"{REMOTE.replace('task:1', 'task:0')}",
        ("worker 1",),
        ("worker 2",),
    ),
    (
        "Error reported from /job:worker/task:0: worker 0 failed: UnavailableError: recvmsg:Connection timed out (lost "
        "contact: worker 1 is at 10.0.0.2:4, worker 2 is at [::3]:5), at epoch 2",
        ("worker 1", "worker 2"),
        (),
    ),
    ("worker 1 failed: X: (lost contact: chief 0 is at host-0:4)", ("chief 0",), ()),
    ("aborted by: Deadline Exceeded\n\nRPC: /tensorflow.CoordinationService/Heartbeat", ("leader",), ()),
    (
        "The parameter server 0 at 127.0.0.1:7 listens but has done nothing for 12 s: end that",
        ("127.0.0.1:7",),
        (),
    ),
    ("Parameter server 1 at [::1]:7 does not answer, and the variables", ("[::1]:7",), ()),
    ("The worker 1 at a:7 listens but does nothing, and no step has ended", ("a:7",), ()),
    ("stage 1 and 3 at b:7 (/job:worker/task:1) does not answer: it has died", ("b:7",), ()),
    ("unisono: a worker was lost while the cluster started, and", (), ()),
]


@pytest.mark.parametrize(("text", "lost", "reported_by"), SENTENCES)
def test_each_sentence_names_whom_it_speaks_of(text, lost, reported_by):
    found = blame_in(text)
    assert (found.lost, found.reported_by) == (lost, reported_by)


@pytest.mark.parametrize("text", ["", "my own mistake", "worker 1 is fine", "batch_size (3) of worker 2"])
def test_other_text_speaks_of_nobody(text):
    assert blame_in(text) is None


def test_survivor_that_passes_an_error_on_names_the_lost_one_and_itself_as_the_messenger():
    found = blame_in("worker 1 failed: UnavailableError: lost contact with worker 2: worker 1 has waited")
    assert (found.lost, found.reported_by) == (("worker 2",), ("worker 1",))


def test_one_lost_worker_that_another_reports_is_a_link_between_the_two():
    text = "Error reported from /job:worker/task:2: worker 2 failed: UnavailableError: recvmsg:Connection timed out"
    passed_on = f"{text} (lost contact: worker 1 is at 10.77.0.2:17695)"
    assert blame_in(passed_on) == Blame(("worker 1",), ("worker 2",))
    assert blame_in(f"worker 0 failed: InternalError: {passed_on}") == Blame(("worker 1",), ("worker 2",))
