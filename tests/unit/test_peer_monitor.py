"""A worker that waits in a collective watches its connections, and is not ended by those that it does not have."""

import atexit
import contextlib
import socket

import pytest
import tensorflow as tf

from unisono.distribute.workers import peer_monitor
from unisono.distribute.workers.cluster import Cluster
from unisono.distribute.workers.peer_monitor import PeerMonitor
from unisono.distribute.workers.ticker import Ticker


@pytest.fixture
def listeners():
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]


class Service:
    """What the monitor uses of other workers: values of all, the ends of collectives, and the kernel's checks."""

    def __init__(self):
        self.said, self.watched, self.values = [], [], {}

    def get_value(self, key, seconds):
        name = "uneven" if key.endswith("uneven") else ""
        if self.values.get(name) is None:
            raise tf.errors.DeadlineExceededError(None, None, "")
        return self.values[name]

    def set_value(self, *_):
        pass

    delete_value = set_value

    def abort_collectives(self, reason):
        self.said.append(reason)

    def keep_alive(self, *what):
        self.watched.append(what)


@pytest.fixture
def service(monkeypatch):
    service = Service()
    for name in ("get_value", "set_value", "delete_value", "abort_collectives", "keep_alive"):
        monkeypatch.setattr(peer_monitor, name, getattr(service, name))
    return service


@pytest.fixture
def clock(stop_clock):
    return stop_clock(peer_monitor, 1000.0)


@pytest.fixture
def monitor(listeners, service, clock, monkeypatch):
    """The monitor of worker 1 of three; worker 0 can be reached, and worker 2 cannot."""
    monkeypatch.setattr(Ticker, "start", lambda _: None)
    monkeypatch.setattr(atexit, "register", lambda *_: None)
    addresses = tuple(f"127.0.0.1:{each.getsockname()[1]}" for each in listeners)
    listeners[2].close()
    return PeerMonitor(Cluster({"worker": addresses}, "worker", 1), 100.0)


@pytest.mark.parametrize("ran_before", [False, True])
def test_peer_that_cannot_be_reached_ends_nothing_because_it_may_not_be_needed(
    monitor, ran_before, service, clock
):
    """As where a firewall lets workers reach worker 0 alone, and collectives use other ports."""
    service.values = {"": "1", "uneven": "1"}  # all have reached the collective
    with monitor.monitor(ran_before):
        for seconds in (9, 2, 80, 8):
            clock.now += seconds
            assert monitor._check() and not service.said


def test_kernel_watches_the_connections_once_in_a_long_collective(monitor, service, clock):
    for waits in ((1, 1), (6, 1, 1), (3, 3)):
        service.watched.clear()
        with monitor.monitor(ran_before=False):
            for seconds in waits:
                clock.now += seconds
                assert monitor._check()
        assert service.watched == [(address, 10.0) for address in monitor._addresses] * (sum(waits) > 5)


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
    monitor, service, clock, mine, first, found
):
    service.values = {"": first}
    drawn = tf.Variable(mine, dtype=tf.int64)
    with monitor.monitor(False, drawn.handle):
        assert monitor._check() and not service.said  # it has not waited yet
        clock.now += 5
        assert monitor._check() is (found is None)
    assert [text.partition(". ")[0] for text in service.said] == [f"the input of {found}"] * bool(found)


def test_data_is_compared_up_to_the_agreement_that_follows_it(monitor, service, clock):
    """A program may go on after the error of inputs that differ, and wait for something else later."""
    service.values = {"": "5 2", "uneven": "5 2"}
    drawn = tf.Variable((6, 0), dtype=tf.int64)
    for number, finds in enumerate([False, False, False, True]):
        with monitor.monitor(False, drawn.handle if number in (0, 3) else None):
            clock.now += 5 * (number > 1)
            assert monitor._check() is not finds
    assert len(service.said) == 1


def test_closed_input_leaves_the_monitor_running(monitor, clock):
    drawn = tf.Variable([5, 1], dtype=tf.int64)
    with monitor.monitor(True, drawn.handle):
        pass
    tf.raw_ops.DestroyResourceOp(resource=drawn.handle)
    with monitor.monitor(False):
        clock.now += 5
        assert monitor._check()
