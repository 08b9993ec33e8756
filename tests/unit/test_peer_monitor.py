"""A worker that waits in a collective looks whether it reaches the others."""

import contextlib
import socket

import pytest

from unisono.distribute.workers import peer_monitor
from unisono.distribute.workers.cluster import Cluster
from unisono.distribute.workers.error_text import blame_in
from unisono.distribute.workers.peer_monitor import PeerMonitor


@pytest.fixture
def listeners():
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]


@pytest.fixture
def monitor(listeners, monkeypatch):
    """The monitor of worker 1 of three; worker 0 can be reached, and worker 2 cannot, as behind a firewall."""
    for name in ("set_value", "delete_value"):
        monkeypatch.setattr(peer_monitor, name, lambda *_: None)
    monkeypatch.setattr(peer_monitor.Ticker, "start", lambda _: None)
    monkeypatch.setattr(peer_monitor.atexit, "register", lambda *_: None)
    addresses = tuple(f"127.0.0.1:{each.getsockname()[1]}" for each in listeners)
    listeners[2].close()
    return PeerMonitor(Cluster({"worker": addresses}, "worker", 1), 100.0)


def test_peer_that_does_not_answer_is_named_with_both_addresses(monitor, monkeypatch):
    said = []
    monkeypatch.setattr(peer_monitor, "abort_collectives", said.append)
    monkeypatch.setattr(peer_monitor, "time", Clock())
    with monitor.monitor(ran_before=False):
        peer_monitor.time.now += 9
        assert monitor._check() and not said
        peer_monitor.time.now += 2
        assert not monitor._check()
    first, second, third = monitor._addresses
    assert first not in said[0] and f"{third} does not answer worker 1 at {second}" in said[0]
    assert blame_in(said[0]).lost == ("worker 2",)


class Clock:
    """Time that the test moves on."""

    now = 1000.0

    def monotonic(self):
        return self.now


def test_peers_that_answer_are_asked_again_only_after_a_while(monitor, listeners, monkeypatch):
    asked = []
    monkeypatch.setattr(peer_monitor, "listens", lambda address, _: not asked.append(address))
    monkeypatch.setattr(peer_monitor, "time", Clock())
    with monitor.monitor(ran_before=False):
        for seconds in (11, 1, 8, 2):
            peer_monitor.time.now += seconds
            assert monitor._check()
    assert len(asked) == 4  # two peers, after 11 and after 22 seconds
