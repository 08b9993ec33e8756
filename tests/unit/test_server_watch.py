"""Addresses "host:port" and their connections; watching servers: which answer, which are lost, whose connections end."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from unisono.distribute.workers import addresses, server_watch
from unisono.distribute.workers.addresses import (
    end_connections,
    free_ports,
    join_address,
    keep_alive,
    listens,
    split_address,
)
from unisono.distribute.workers.lines import is_grpc
from unisono.distribute.workers.server_watch import ServerWatch, answers
from unisono.distribute.workers.ticker import Ticker


@pytest.mark.parametrize(
    ("address", "parts"), [("a.example:80", ("a.example", 80)), ("[::1]:65535", ("::1", 65535))]
)
def test_address_is_parsed_and_formatted(address, parts):
    assert split_address(address) == parts
    assert join_address(*parts) == address


@pytest.mark.parametrize("address", ["", "host", ":80", "host:", "host:http", "host:0", "host:65536"])
def test_what_is_no_address_is_rejected_with_the_value(address):
    with pytest.raises(ValueError, match=r"must be 'host:port' with a port from 1 to 65535. Received: "):
        split_address(address)


def test_address_of_ipv6_needs_brackets():
    with pytest.raises(ValueError, match=r"must be '\[IPv6\]:port' .*Received: 'fd00::1:80'"):
        split_address("fd00::1:80")


def test_listener_is_found_whether_it_speaks_or_not():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = join_address(*listener.getsockname()[:2])
        assert listens(address, 5.0)
        assert not answers(address, 0.1), "it accepts the connection and sends nothing"
    assert not listens(address, 5.0)
    assert not answers(address, 5.0)


def test_grpc_server_is_known_by_its_first_frame():
    assert is_grpc(b"\0\0\6\4\0\0\0\0\0" + b"rest")
    assert not is_grpc(b"unisono 0123") and not is_grpc(b"\0\0\6\4")


def test_free_ports_are_different_and_given_once(monkeypatch):
    assert len(set(free_ports(20))) == 20
    given = iter([*free_ports(1) * 3, *free_ports(1)])
    monkeypatch.setattr(addresses, "_port_to_try", lambda: next(given))
    with pytest.raises(StopIteration):
        free_ports(1)


def test_ticker_ticks_until_it_has_nothing_left_to_watch():
    left, done = [3, 2, 1], threading.Event()

    def tick() -> bool:
        left.pop()
        if not left:
            done.set()
        return bool(left)

    ticker = Ticker("test", tick, 0.001)
    ticker.start()
    done.wait()
    ticker.stop(threading.TIMEOUT_MAX)
    assert not any(thread.name == "unisono-test" for thread in threading.enumerate())


def test_ticker_that_is_stopped_ticks_no_more():
    ticked = []
    ticker = Ticker("test", lambda: not ticked.append(1), 60.0)
    ticker.start()
    ticker.stop(threading.TIMEOUT_MAX)
    assert not ticked
    assert not any(thread.name == "unisono-test" for thread in threading.enumerate())


SETTINGS = b"\0\0\0\4\0\0\0\0\0"  # the first bytes of a gRPC server: an empty SETTINGS frame of HTTP/2


@contextlib.contextmanager
def server(talks: threading.Event):
    """A listener that sends the greeting of a gRPC server while `talks` is set. Yields its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    taken = []

    def serve():
        with contextlib.suppress(OSError):
            while True:
                taken.append(listener.accept()[0])
                if talks.is_set():
                    taken[-1].sendall(SETTINGS)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for connection in taken:
            connection.close()


@pytest.fixture
def talks():
    event = threading.Event()
    event.set()
    return event


def connected(address: str) -> socket.socket:
    host, port = address.split(":")
    return socket.create_connection((host, int(port)))


def test_a_process_that_takes_connections_and_says_nothing_does_not_answer(talks):
    with server(talks) as address:
        assert answers(address, 1e4)
        talks.clear()
        assert not answers(address, 0.2)
    assert not answers(address, 0.2)


def test_only_the_connections_to_the_address_are_ended(talks):
    talks.clear()
    with server(talks) as lost, server(talks) as other:
        to_lost, to_other = connected(lost), connected(other)
        with to_lost, to_other:
            assert end_connections(lost) == 1
            assert to_lost.recv(1) == b""
            to_other.sendall(b"still open")


def test_the_kernel_is_asked_to_check_after_connections(talks):
    with server(talks) as address, connected(address) as connection:
        assert not connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        keep_alive(address, 8.0)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 2
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 8000


def test_silence_for_the_timeout_loses_a_process_and_ends_what_waits_for_it(talks, monkeypatch, stop_clock):
    clock, asked = stop_clock(server_watch), []
    monkeypatch.setattr(server_watch, "answers", lambda *where: asked.append(where) or talks.is_set())
    with server(talks) as address, connected(address) as waiting:
        assert waiting.recv(9) == SETTINGS
        watch = ServerWatch({3: address}, timeout=8.0)

        def check(is_there):
            (talks.set if is_there else talks.clear)()
            watch._check(3)

        for _ in range(2):
            check(True)
            check(False)
            clock.now += 7.5
            check(False)
        talks.set()
        assert watch.find_lost() == {}, "an answer resets the timeout"
        clock.now += 0.5
        check(False)
        assert waiting.recv(1) == b"", "as if the process had died"
        talks.set()
        assert watch.find_lost()[3].startswith("has not answered for 8 s (UNISONO_TIMEOUT): it hangs")
        assert (address, 2.0) in asked


def test_watch_asks_again_and_again_until_it_is_stopped(monkeypatch):
    asked = threading.Semaphore(0)
    monkeypatch.setattr(ServerWatch, "_check", lambda watch, task: asked.release() or True)
    watch = ServerWatch({1: "127.0.0.1:9", 2: "127.0.0.1:9"}, timeout=0.004)
    watch.start()
    for _ in range(6):
        asked.acquire()
    watch.stop()
    assert not any("server-watch" in thread.name for thread in threading.enumerate())


def test_a_process_that_is_gone_is_lost_at_once():
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    assert ServerWatch({1: address}, timeout=60.0).find_lost() == {
        1: "does not answer: it has died, or its machine is gone"
    }
