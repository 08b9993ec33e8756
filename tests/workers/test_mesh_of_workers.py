"""Meshes over two workers: weights in parts, collectives in groups, kill and resume, on this mesh and on others."""

from __future__ import annotations

import os
import re

import numpy as np
import pytest
from helpers import FLOAT64
from workers.conftest import PROGRAMS, ROOT

from unisono.distribute.workers.addresses import free_ports

pytestmark = pytest.mark.process


def read(path):
    with np.load(path) as found:
        return dict(found)


@pytest.fixture(scope="module")
def alone(forked, tmp_path_factory):
    """What one device computes."""
    folder = tmp_path_factory.mktemp("alone")
    files = {kind: folder / f"alone.{kind}" for kind in ("out", "err")}
    process = forked.start(PROGRAMS / "meshed.py", folder, "none", "1", folder=ROOT, env={}, **files)
    assert process.wait() == 0, files["err"].read_text()[-3000:]
    return read(folder / "0.npz")


def check(workers, expected):
    for number in range(2):
        found = read(workers.out / f"{number}.npz")
        assert found.keys() >= expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=FLOAT64, atol=FLOAT64, err_msg=name)


@pytest.mark.parametrize(
    ("axes", "shape", "replicas"),
    [
        ("batch,model", "2x2", 2),
        ("model,batch", "2x2", 2),
        ("batch,model", "1x2", 1),
        ("batch,model", "1x4", 2),
    ],
)
@pytest.mark.short("model,batch-2x2-2")
def test_mesh_over_two_workers_trains_as_one_device(start_workers, alone, axes, shape, replicas):
    workers = start_workers("meshed", replicas=replicas, arguments=[axes, shape, "initialize"])
    workers.succeed()
    check(workers, alone)
    assert "(4, 4)" in workers.printed(0) or shape == "1x4"  # the table has 8 rows


@pytest.mark.parametrize(
    ("axes", "shape"), [("batch,model", "1x4"), ("batch,model", "2x2"), ("model,batch", "2x2")]
)
@pytest.mark.short("batch,model-1x4")
@pytest.mark.long
def test_killed_mesh_of_workers_resumes_on_any_mesh(start_workers, alone, axes, shape):
    first = start_workers(
        "meshed", replicas=2, arguments=["batch,model", "2x2", "initialize", "backup", "dies"], timeout=15
    )
    assert all(one.code for one in first.wait())
    second = start_workers("meshed", replicas=2, arguments=[axes, shape, "initialize", "backup"])
    second.succeed()
    check(second, {name: value for name, value in alone.items() if not name.startswith("history")})


LOST = (
    r"lost contact with worker 1|heartbeats|Connection reset|failed to connect"  # whichever notices it first
)


@pytest.mark.long
@pytest.mark.parametrize("axes", ["batch,model", "model,batch"])
@pytest.mark.parametrize("fault", ["dies", "stops"])
def test_lost_worker_of_a_mesh_is_an_error_on_the_other(start_workers, axes, fault):
    workers = start_workers("meshed", replicas=2, arguments=[axes, "2x2", "initialize", fault], timeout=8)
    assert workers.processes[0].wait() == os.EX_TEMPFAIL
    printed = workers.printed(0) + workers.printed(0, "err")
    assert re.search(LOST, printed), printed[-4000:]


@pytest.mark.long
def test_workers_find_each_other_by_the_variables_of_keras(forked, tmp_path, alone):
    ports = free_ports(2)
    addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
    running = []
    for rank in range(2):
        env = {
            "KERAS_DISTRIBUTION_JOB_ADDRESSES": addresses,
            "KERAS_DISTRIBUTION_NUM_PROCESSES": "2",
            "KERAS_DISTRIBUTION_PROCESS_ID": str(rank),
            "UNISONO_REPLICAS_PER_WORKER": "1",
            "UNISONO_TIMEOUT": "250",
        }
        files = {kind: tmp_path / f"{rank}.{kind}" for kind in ("out", "err")}
        words = [PROGRAMS / "meshed.py", tmp_path, "batch,model", "1x2", "initialize"]
        running.append(forked.start(*words, folder=ROOT, env=env, **files))
    codes = [process.wait() for process in running]
    assert codes == [0, 0], (tmp_path / "0.err").read_text()[-3000:]
    for rank in range(2):
        found = read(tmp_path / f"{rank}.npz")
        np.testing.assert_allclose(found["outputs"], alone["outputs"], rtol=FLOAT64, atol=FLOAT64)
