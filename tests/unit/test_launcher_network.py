"""The network of launched processes: loopback alone, the same for all of them, and said where it cannot be had."""

import os
import socket
import subprocess
import sys

import pytest

from unisono.distribute.launcher import network as network_module
from unisono.distribute.launcher.guard import die_with_parent
from unisono.distribute.launcher.network import PrivateNetwork, before_program, make_network

LOOK = """
import os, socket, sys
server = socket.create_server(("0.0.0.0", 0)) if sys.argv[1] == "serve" else None
if server:
    print(server.getsockname()[1], [name for _, name in socket.if_nameindex()], os.getuid(), flush=True)
    server.accept()[0].sendall(b"hello")
else:
    print(socket.create_connection(("127.0.0.1", int(sys.argv[2])), 10).recv(5).decode())
"""


@pytest.fixture(params=["net", "user"])
def network(request, monkeypatch):
    """Made with the privilege to do so, if this process has it, and without."""
    monkeypatch.setattr(network_module, "_TRIED", (request.param,))
    try:
        made = PrivateNetwork()
    except OSError as error:
        pytest.skip(f"this kernel allows no network namespaces: {error}")
    yield made
    made.close()


def run(network, *arguments):
    return subprocess.Popen(
        [sys.executable, "-S", "-c", LOOK, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=before_program(network, die_with_parent),
    )


def test_processes_reach_each_other_and_nothing_outside_reaches_them(network):
    with run(network, "serve") as server:
        port, *words = server.stdout.readline().split(maxsplit=1)
        assert words == [f"['lo'] {os.getuid()}\n"]
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", int(port)), 5)
        with run(network, "ask", port) as asker:
            assert asker.stdout.read() == "hello\n"
    assert (server.returncode, asker.returncode) == (0, 0)
    assert len(socket.if_nameindex()) >= 1, "this process has stayed where it was"


def test_descriptors_are_given_back(network):
    before = os.listdir("/proc/self/fd")
    PrivateNetwork().close()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_kernel_that_refuses_is_told_and_nothing_is_isolated(monkeypatch):
    def refused():
        raise OSError(1, "unshare: Operation not permitted")

    monkeypatch.setattr(network_module, "_make", refused)  # the process that makes it is forked from this one
    made, sentence = make_network("own")
    assert made is None
    assert "unshare: Operation not permitted" in sentence and "--network host" in sentence
    assert make_network("host") == (None, "")
