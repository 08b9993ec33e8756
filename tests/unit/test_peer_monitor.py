"""A worker that waits in a collective watches its connections, and is not ended by those that it does not have."""

import contextlib
import socket

import pytest
import tensorflow as tf

from unisono.distribute.workers import peer_monitor
from unisono.distribute.workers.cluster import Cluster
from unisono.distribute.workers.peer_monitor import PeerMonitor


@pytest.fixture
def listeners():
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]


@pytest.fixture
def monitor(listeners, monkeypatch):
    """The monitor of worker 1 of three; worker 0 can be reached, and worker 2 cannot."""
    for name in ("set_value", "delete_value"):
        monkeypatch.setattr(peer_monitor, name, lambda *_: None)
    monkeypatch.setattr(peer_monitor.Ticker, "start", lambda _: None)
    monkeypatch.setattr(peer_monitor.atexit, "register", lambda *_: None)
    addresses = tuple(f"127.0.0.1:{each.getsockname()[1]}" for each in listeners)
    listeners[2].close()
    return PeerMonitor(Cluster({"worker": addresses}, "worker", 1), 100.0)


class Clock:
    """Time that the test moves on."""

    now = 1000.0

    def monotonic(self):
        return self.now


@pytest.mark.parametrize("ran_before", [False, True])
def test_peer_that_cannot_be_reached_ends_nothing_because_it_may_not_be_needed(
    monitor, ran_before, monkeypatch
):
    """As where a firewall lets workers reach worker 0 alone, and collectives use other ports."""
    said = []
    monkeypatch.setattr(peer_monitor, "abort_collectives", said.append)
    monkeypatch.setattr(peer_monitor, "get_value", lambda *_: "1")  # all have reached the collective
    monkeypatch.setattr(peer_monitor, "time", Clock())
    with monitor.monitor(ran_before):
        for seconds in (9, 2, 80, 8):
            peer_monitor.time.now += seconds
            assert monitor._check() and not said


def test_kernel_watches_the_connections_once_in_a_long_collective(monitor, monkeypatch):
    watched = []
    monkeypatch.setattr(peer_monitor, "keep_alive", lambda *what: watched.append(what))
    monkeypatch.setattr(peer_monitor, "time", Clock())
    for waits in ((1, 1), (6, 1, 1), (3, 3)):
        watched.clear()
        with monitor.monitor(ran_before=False):
            for seconds in waits:
                peer_monitor.time.now += seconds
                assert monitor._check()
        assert watched == [(address, 10.0) for address in monitor._addresses] * (sum(waits) > 5)


@pytest.mark.parametrize(
    "mine, first, found",
    [
        ((5, 0), None, None),  # nobody's data has ended
        ((5, 0), "5 2", None),  # this worker may be about to see the end
        ((4, 0), "5 2", None),
        ((5, 1), "5 2", None),
        ((6, 0), "5 2", "worker 2 ended after 5 batches, and worker 1 has read 6"),
        ((4, 1), "5 2", "worker 1 ended after 4 batches, and worker 2 has read 5"),
        ((5, 1), "5 1", None),  # this worker was the first
    ],
)
def test_data_that_ended_earlier_elsewhere_is_proved_by_the_batches_read(
    monitor, monkeypatch, mine, first, found
):
    def get_value(key, _):
        if first is None or key.endswith("uneven"):
            raise tf.errors.DeadlineExceededError(None, None, "")
        return first

    said = []
    monkeypatch.setattr(peer_monitor, "abort_collectives", said.append)
    monkeypatch.setattr(peer_monitor, "get_value", get_value)
    monkeypatch.setattr(peer_monitor, "time", Clock())
    drawn = tf.Variable(mine, dtype=tf.int64)
    with monitor.monitor(False, drawn.handle):
        assert monitor._check() and not said  # it has not waited yet
        peer_monitor.time.now += 5
        assert monitor._check() is (found is None)
    assert [text.partition(". ")[0] for text in said] == [f"the input of {found}"] * bool(found)


def test_data_is_compared_up_to_the_agreement_that_follows_it(monitor, monkeypatch):
    """A program may go on after the error of inputs that differ, and wait for something else later."""
    said = []
    monkeypatch.setattr(peer_monitor, "abort_collectives", said.append)
    monkeypatch.setattr(peer_monitor, "get_value", lambda *_: "5 2")
    drawn = tf.Variable((6, 0), dtype=tf.int64)
    monkeypatch.setattr(peer_monitor, "time", Clock())
    for number, finds in enumerate([False, False, False, True]):
        with monitor.monitor(False, drawn.handle if number in (0, 3) else None):
            peer_monitor.time.now += 5 * (number > 1)
            assert monitor._check() is not finds
    assert len(said) == 1


def test_closed_input_leaves_the_monitor_running(monitor, monkeypatch):
    monkeypatch.setattr(peer_monitor, "time", Clock())
    drawn = tf.Variable([5, 1], dtype=tf.int64)
    with monitor.monitor(True, drawn.handle):
        pass
    tf.raw_ops.DestroyResourceOp(resource=drawn.handle)
    with monitor.monitor(False):
        peer_monitor.time.now += 5
        assert monitor._check()
