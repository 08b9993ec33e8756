"""The network of launched processes: only a shared loopback, and a message if it is not available."""

import os
import socket
import subprocess
import sys

import pytest

from unisono.distribute.launcher import network as network_module
from unisono.distribute.launcher.network import choose_network

SERVE = """
import os, socket, subprocess, sys
from unisono.distribute.launcher import network
network._TRIED = (sys.argv[1],)
network.enter_private_network()
server = socket.create_server(("0.0.0.0", 0))
print(server.getsockname()[1], [name for _, name in socket.if_nameindex()], os.getuid(), flush=True)
input()
ask = f"import socket; print(socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 10).recv(5))"
with subprocess.Popen([sys.executable, "-S", "-c", ask]):
    server.accept()[0].sendall(b"hello")
"""


@pytest.mark.parametrize("kind", ["net", "user"])
def test_processes_reach_each_other_and_nothing_outside_reaches_them(kind):
    """Created with the required privilege, if this process has it, and without."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", SERVE, kind], text=True, **pipes) as server:
        port, _, words = server.stdout.readline().partition(" ")
        if not port:
            pytest.skip(f"this kernel allows no network namespaces: {server.stderr.read()}")
        assert words == f"['lo'] {os.getuid()}\n"
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", int(port)), 5)
        assert server.communicate("\n")[0] == "b'hello'\n"
    assert server.returncode == 0


def test_kernel_that_allows_none_is_reported_and_this_process_stays_where_it_is(monkeypatch):
    def fails():
        raise OSError(1, "unshare: Operation not permitted")

    monkeypatch.setattr(network_module, "_enter", fails)  # the process that tries it is forked from this one
    before = os.listdir("/proc/self/fd"), socket.if_nameindex()
    private, sentence = choose_network("own")
    assert not private
    assert "unshare: Operation not permitted" in sentence and "--network host" in sentence
    assert (os.listdir("/proc/self/fd"), socket.if_nameindex()) == before
    assert choose_network("host") == (False, "")
