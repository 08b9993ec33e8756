"""What launch would start, how it reports results, and the network of the processes."""

import ctypes
import io
import json
import os
import re
import socket
import subprocess
import sys
import types

import pytest

from unisono.commands import launch as launch_command
from unisono.distribute.launcher import network
from unisono.distribute.launcher.output import Output
from unisono.distribute.launcher.tasks import RequestedCluster, plan
from unisono.distribute.workers.places import read_place


def config(task):
    return json.loads(task.env["TF_CONFIG"])


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_plan_gives_every_worker_its_place_in_one_cluster():
    tasks = plan(RequestedCluster(workers=3, replicas_per_worker=2, timeout=7.5), ["train.py", "--fast"])
    assert [t.name for t in tasks] == ["worker-0", "worker-1", "worker-2"]
    assert [config(t)["task"]["index"] for t in tasks] == [0, 1, 2]
    assert all(config(t)["cluster"] == config(tasks[0])["cluster"] for t in tasks)
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+", a) for a in config(tasks[0])["cluster"]["worker"])
    assert tasks[0].env["UNISONO_REPLICAS_PER_WORKER"] == "2"
    assert tasks[0].env["UNISONO_TIMEOUT"] == "7.5"
    assert tasks[0].command[-2:] == ("train.py", "--fast")


def test_plan_with_parameter_servers_runs_the_script_on_the_chief_alone():
    tasks = plan(RequestedCluster(workers=2, parameter_servers=1), ["train.py"])
    roles = {"ps-0": "server", "worker-0": "spare", "worker-1": "spare", "chief": "script"}
    assert {t.name: t.role for t in tasks} == roles
    assert config(tasks[-1])["task"] == {"type": "chief", "index": 0}
    counts = {kind: len(addresses) for kind, addresses in config(tasks[0])["cluster"].items()}
    assert counts == {"chief": 1, "worker": 2, "ps": 1}


def test_plan_with_stages_gives_each_worker_helpers_of_its_own():
    tasks = plan(RequestedCluster(workers=2, stages=3), ["train.py"])
    helpers = [f"worker-{worker}{stage}" for worker in (0, 1) for stage in ("-stage-1", "-stage-2", "")]
    assert [t.name for t in tasks] == helpers
    assert tasks[2].env["UNISONO_STAGES"].split(",") == config(tasks[0])["cluster"]["stage"]
    assert config(tasks[1])["task"] == {"type": "stage", "index": 1}
    assert tasks[2].env["UNISONO_STAGES"] != tasks[5].env["UNISONO_STAGES"]


def test_plan_shares_gpus_out_and_rejects_more_than_there_are(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    tasks = plan(RequestedCluster(workers=2), ["t.py"])
    assert [t.env["CUDA_VISIBLE_DEVICES"] for t in tasks] == ["4,5", "6,7"]
    with pytest.raises(ValueError, match=r"workers \(3\) \* replicas per worker \(2\) .* visible GPUs \(4\)"):
        plan(RequestedCluster(workers=3, replicas_per_worker=2), ["t.py"])


def test_plan_of_one_of_several_machines_gives_each_worker_its_place_and_leaves_tf_config_to_them():
    layout = RequestedCluster(workers=2, nnodes=3, node_rank=1, endpoint="node0:29500")
    tasks = plan(layout, ["-m", "package.train"])
    assert [t.name for t in tasks] == ["worker-2", "worker-3"]
    assert tasks[1].command[-2:] == ("-m", "package.train")
    for rank, task in zip((2, 3), tasks):
        assert "TF_CONFIG" not in task.env
        found = read_place(task.env)
        assert (found.launcher, found.rank, found.size, found.addresses) == (
            "launch",
            rank,
            6,
            ("node0:29500",),
        )
    assert tasks[0].env["UNISONO_RUN"] == plan(layout, ["t.py"])[0].env["UNISONO_RUN"], (
        "one run for all launchers"
    )


def test_plan_of_several_machines_leaves_the_network_of_nccl_to_it(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    alone, of_two = (
        plan(RequestedCluster(workers=2, nnodes=n, endpoint="a:1"), ["t.py"])[1].env for n in (1, 2)
    )
    assert alone["NCCL_SOCKET_IFNAME"] == "lo" and "NCCL_SOCKET_IFNAME" not in of_two
    assert of_two["CUDA_VISIBLE_DEVICES"] == "5"


TWO_MACHINES = ("--nnodes", "2", "--node-rank", "0", "--rdzv-endpoint", "a:1")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--nnodes", "2"), "--node-rank: pass 0 to 1"),
        (("--nnodes", "2", "--node-rank", "2"), "--node-rank: pass 0 to 1"),
        (("--node-rank", "1"), "--node-rank: pass 0 to 0"),
        (TWO_MACHINES[:-2], "--rdzv-endpoint: an address must be 'host:port'"),
        ((*TWO_MACHINES, "--network", "private"), "--network private"),
        ((*TWO_MACHINES, "--parameter-servers", "1"), "--parameter-servers"),
    ],
)
def test_launch_on_several_machines_names_the_argument_that_is_wrong(arguments, said, capsys):
    with pytest.raises(SystemExit):
        launch_command.main([*arguments, __file__])
    assert said in capsys.readouterr().err


def test_output_has_whole_lines_with_prefix_and_remembers_the_last(tmp_path, capsys):
    read, write = os.pipe()
    read_err, write_err = os.pipe()
    output = Output(["worker-0", "ps-0"], tmp_path / "logs", 1)
    output.add("worker-0", io.FileIO(read), io.FileIO(read_err))
    os.write(write, b"one\ntw")
    output.pump(1)
    assert capsys.readouterr().out == "[worker-0] one\n"
    os.write(write, b"o\n\nhalf")
    os.close(write)
    os.close(write_err)
    output.drain()
    assert capsys.readouterr().out == "[worker-0] two\n[worker-0] \n[worker-0] half\n"
    assert output.last_lines("worker-0") == ["one", "two", "half"]
    output.close()
    assert (tmp_path / "logs" / "worker-0.restart-1.log").read_bytes() == b"one\ntwo\n\nhalf"


def test_full_disk_ends_the_log_and_not_the_output(tmp_path, capsys):
    (tmp_path / "worker-0.log").symlink_to("/dev/full")
    (read, write), (read_err, write_err) = os.pipe(), os.pipe()
    output = Output(["worker-0"], tmp_path, 0)
    output.add("worker-0", io.FileIO(read), io.FileIO(read_err))
    for text in (b"one\n", b"two\n"):
        os.write(write, text)
        output.pump(1)
    os.close(write)
    os.close(write_err)
    output.close()
    printed = capsys.readouterr()
    assert printed.out == "[worker-0] one\n[worker-0] two\n"
    assert printed.err == "[launch] the log of worker-0 ends here: No space left on device\n"


@pytest.mark.parametrize("level, hides", [("3", True), ("0", False)])
def test_notices_before_the_level_is_read_are_hidden_but_no_errors(
    level, hides, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)
    notices = [
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        "I0000 00:00:1795909988.892402   15566 port.cc:153] oneDNN custom operations are on.",
    ]
    errors = ["E0000 00:00:1795907095.347507   32704 cuda_dnn.cc:52] failed", "I0000 of a program"]
    (read, write), (read_err, write_err) = os.pipe(), os.pipe()
    output = Output(["worker-0"], tmp_path, 0)
    output.add("worker-0", io.FileIO(read), io.FileIO(read_err))
    text = "".join(f"{line}\n" for line in (*notices, *errors))
    os.write(write_err, text.encode())
    output.pump(1)
    os.close(write)
    os.close(write_err)
    output.close()
    expected = errors if hides else [*notices, *errors]
    assert capsys.readouterr().err.splitlines() == [f"[worker-0] {line}" for line in expected]
    assert (tmp_path / "worker-0.log").read_text() == text


def test_launcher_does_not_load_tensorflow():
    loads = "{'tensorflow', 'keras'}.isdisjoint(sys.modules)"
    code = f"import sys, unisono.distribute.launcher.supervisor; sys.exit(not {loads})"
    env = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)


SERVE = """
import os, socket, subprocess, sys
from unisono.distribute.launcher import network
if sys.argv[1] == "user":
    real = network.ctypes.CDLL(None, use_errno=True).unshare
    allowed = lambda flags: -1 if flags == network._NEW_NET else real(flags)
    network.ctypes.CDLL = lambda *_, **__: type("libc", (), {"unshare": staticmethod(allowed)})
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


def test_kernel_that_allows_none_is_an_error(monkeypatch):
    refuses = types.SimpleNamespace(unshare=lambda flags: -1)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: refuses)
    monkeypatch.setattr(ctypes, "get_errno", lambda: 1)
    with pytest.raises(
        OSError, match=r"--network private is not possible here \(unshare: Operation not permitted\)"
    ):
        network.enter_private_network()
