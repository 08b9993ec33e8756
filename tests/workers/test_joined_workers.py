"""Processes that find each other by a launcher's variables, on loopback; two launchers as on two machines."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from workers.conftest import PROGRAMS, QUIET, ROOT

from unisono.distribute.workers.addresses import free_ports

pytestmark = pytest.mark.process
TOLERANCE = 1e-6  # float32: sums are added in another order
JOINED = PROGRAMS / "joined.py"


def weights_of(text):
    """The place and the weights of each worker that printed them."""
    lines = [line.split("joined ")[1].split() for line in text.splitlines() if "joined " in line]
    return {" ".join(words[:3]): np.frombuffer(bytes.fromhex(words[3]), "float32") for words in lines}


def check_joined(text, workers, alone):
    found = weights_of(text)
    assert sorted(found) == [f"{rank} of {workers}" for rank in range(workers)], text
    for weights in found.values():
        assert weights.tobytes() == found[f"0 of {workers}"].tobytes()
        np.testing.assert_allclose(weights, alone, rtol=TOLERANCE, atol=TOLERANCE)


def run_joined(forked, tmp_path, workers, *arguments, timeout="250"):
    """The statuses and the output of workers that have torchrun's variables."""
    (port,) = free_ports(1)
    common = {"WORLD_SIZE": str(workers), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    running = []
    for rank in range(workers):
        files = {kind: tmp_path / f"{rank}.{kind}" for kind in ("out", "err")}
        env = {**common, "RANK": str(rank), "UNISONO_REPLICAS_PER_WORKER": "1", "UNISONO_TIMEOUT": timeout}
        running.append(forked.start(JOINED, tmp_path, *arguments, folder=ROOT, env=env, **files))
    codes = [process.wait() for process in running]
    printed = (
        "\n".join((tmp_path / f"{r}.{kind}").read_text() for r in range(workers)) for kind in ("out", "err")
    )
    return codes, *printed


@pytest.fixture
def alone(forked, tmp_path):
    """The weights of the program in one process."""
    out = tmp_path / "alone.out"
    env = {"UNISONO_REPLICAS_PER_WORKER": "1"}
    assert (
        forked.start(JOINED, tmp_path, folder=ROOT, env=env, out=out, err=tmp_path / "alone.err").wait() == 0
    )
    return weights_of(out.read_text())["0 of 1"]


def test_processes_with_the_variables_of_torchrun_train_one_model(forked, tmp_path, alone):
    """Three workers of which each has other samples: 5 in a batch."""
    codes, out, err = run_joined(forked, tmp_path, 3)
    assert codes == [0, 0, 0], err
    check_joined(out, 3, alone)


@pytest.mark.long
def test_worker_that_ends_after_the_meeting_is_not_waited_for(forked, tmp_path):
    """TensorFlow holds Python's lock while it waits, for an hour."""
    codes, _, err = run_joined(forked, tmp_path, 2, "gone", timeout="8")
    assert codes == [1, 5] and "in _run_bounded" in err, err


@pytest.mark.parametrize("restarts", [0, pytest.param(1, marks=pytest.mark.long)])
def test_two_launchers_train_one_model_and_restart_without_a_word_between_them(
    restarts, launch_forks, tmp_path, alone
):
    (port,) = free_ports(1)
    common = (
        "--nnodes",
        2,
        "--nproc-per-node",
        1,
        "--rdzv-endpoint",
        f"127.0.0.1:{port}",
        "--restarts",
        restarts,
    )
    program = [JOINED, tmp_path, *[tmp_path / "backup"] * restarts]
    machines = [launch_forks("--node-rank", rank, *common, *program) for rank in (1, 0)]
    printed = [machine.communicate() for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], printed
    check_joined("\n".join(out for out, _ in printed), 2, alone)
    assert ("restarting all processes" in printed[0][1]) is bool(restarts)


@pytest.mark.long
@pytest.mark.clusters
def test_processes_of_a_real_mpirun_train_one_model(tmp_path, alone):
    command = os.environ.get("UNISONO_TEST_MPIRUN", "mpirun").split()
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {command[0]} (UNISONO_TEST_MPIRUN names another command)")
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    out = tmp_path / "out"
    out.mkdir()
    done = subprocess.run(
        [*command, "-n", "2", sys.executable, JOINED, out],
        env={**QUIET, **root, "UNISONO_REPLICAS_PER_WORKER": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    check_joined("\n".join(path.read_text() for path in out.iterdir()), 2, alone)
