"""Addresses "host:port": splitting, joining, connecting; and the thread that all watchers use."""

from __future__ import annotations

import socket
import threading

import pytest

from unisono.distribute.workers import addresses
from unisono.distribute.workers.addresses import (
    first_words,
    free_ports,
    is_grpc,
    join_address,
    listens,
    split_address,
)
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


def test_listener_is_found_whether_it_speaks_or_not():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = join_address(*listener.getsockname()[:2])
        assert listens(address, 5.0)
        assert first_words(address, 0.1) == b"", "it accepts the connection and sends nothing"
    assert not listens(address, 5.0)
    assert first_words(address, 5.0) == b""


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
