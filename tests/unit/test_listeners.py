"""Which servers other machines can reach, and the firewall rules that prevent it."""

import os
import pathlib
import socket
import sys

import pytest

from unisono.commands import doctor
from unisono.commands.machine import listeners
from unisono.commands.machine.listeners import (
    EXAMPLE_PEERS,
    EXAMPLE_PORTS,
    NETWORK_POLICY,
    Listener,
    listening,
    nftables,
    reachable_listeners,
    rules,
)

DEPLOY = pathlib.Path(__file__).parents[2] / "docs" / "deploy"
HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def line(address, port, state, inode):
    return f"   0: {address}:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  0  0 {inode} 1 0\n"


@pytest.fixture
def proc(tmp_path):
    """A /proc with two processes, one of them with TensorFlow, as on a little-endian machine."""
    (tmp_path / "net").mkdir()
    v4 = [
        ("00000000", 22, "0A", 1),
        ("0100007F", 9000, "0A", 2),
        ("0B00000A", 2222, "01", 3),
        ("0B00000A", 80, "0A", 4),
    ]
    v6 = [("0" * 32, 2222, "0A", 5), ("0" * 24 + "01000000", 9001, "0A", 6)]
    v6 += [("0000000000000000FFFF00000100007F", 9002, "0A", 7)]
    for name, entries in (("tcp", v4), ("tcp6", v6)):
        (tmp_path / "net" / name).write_text(HEAD + "".join(line(*entry) for entry in entries))
    for pid, command, maps, inodes in (
        (71, "python\0train.py\0\x1b[31m", "/x/libtensorflow_cc.so.2", [5, 3]),
        (72, "nginx", "", [4]),
    ):
        (tmp_path / str(pid) / "fd").mkdir(parents=True)
        (tmp_path / str(pid) / "cmdline").write_bytes(command.encode())
        (tmp_path / str(pid) / "maps").write_text(maps)
        for number, inode in enumerate(inodes):
            os.symlink(f"socket:[{inode}]", tmp_path / str(pid) / "fd" / str(number))
    return tmp_path


@pytest.mark.skipif(sys.byteorder != "little", reason="the file is that of a little-endian machine")
def test_listeners_on_more_than_the_loopback_interface_are_found_with_their_processes(proc):
    found = reachable_listeners(proc)
    assert found == [
        Listener(22, "0.0.0.0"),
        Listener(80, "10.0.0.11", 72, "nginx"),
        Listener(2222, "::", 71, "python train.py ?[31m", runs_tensorflow=True),
    ]
    first, *others = listening(found, ["lo", "eth0"])
    assert (
        first.name == "port 2222" and "process 71" in first.problem and "doctor --firewall" in first.problem
    )
    assert [each.problem for each in others] == ["", ""] and "another user" in others[0].value
    (only,) = listening(found, ["lo"])
    assert "only a loopback interface" in only.value and not only.problem


def test_own_server_is_found_and_a_machine_without_proc_has_none(tmp_path):
    with socket.create_server(("0.0.0.0", 0)) as server, socket.create_server(("127.0.0.1", 0)) as hidden:
        found = {each.port: each for each in reachable_listeners()}
        assert found[server.getsockname()[1]].pid == os.getpid()
        assert hidden.getsockname()[1] not in found
    assert reachable_listeners(tmp_path) == []
    assert listening([], ["eth0"])[0].value == "reach no server here"


def test_rules_are_those_that_the_documentation_holds():
    assert (DEPLOY / "nftables.conf").read_text() == nftables(EXAMPLE_PORTS, EXAMPLE_PEERS)
    assert (DEPLOY / "network-policy.yaml").read_text() == NETWORK_POLICY
    assert NETWORK_POLICY.partition("spec:")[2].strip() in (DEPLOY / "kubernetes.yaml").read_text()


def test_rules_name_the_cluster(capsys, monkeypatch):
    monkeypatch.setattr(listeners, "reachable_listeners", list)  # other tests may run servers
    task = (
        '{"cluster": {"worker": ["10.1.0.2:4000", "[fd00::3]:4000"]}, "task": {"type": "worker", "index": 0}}'
    )
    text = rules({"TF_CONFIG": task})
    assert "4000 } ip saddr { 10.1.0.2 } accept" in text and "ip6 saddr { fd00::3 } accept" in text
    assert text.index("drop") > text.index("accept") and "kind: NetworkPolicy" in text
    assert rules({"TF_CONFIG": "{"}).startswith("# Only the machines")
    assert doctor.main(["--firewall"]) == 0
    assert "table inet unisono" in capsys.readouterr().out
