"""GPUs as listed by `nvidia-smi`: which are used, how launch and doctor use that."""

import os
import stat

import pytest

from unisono.commands import doctor
from unisono.distribute.launcher import gpus
from unisono.distribute.launcher.tasks import RequestedCluster, plan

FOUR = """\
0, GPU-aa, NVIDIA H100, 81559, 2, 0, 9.0, 00000000:1B:00.0
1, GPU-bb, NVIDIA H100, 81559, 40000, 97, 9.0, 00000000:43:00.0
2, GPU-cc, NVIDIA A100, 40960, 3, 0, 8.0, 00000000:A3:00.0
3, GPU-dd, NVIDIA H100, 81559, 2, 1, 9.0, 00000000:C3:00.0
"""
LOST = "Unable to determine the device handle for GPU0000:A3:00.0: GPU is lost.  Reboot the system to recover this GPU\n"


def with_lost(number):
    """The listing with one GPU lost."""
    return "".join(LOST if line.startswith(number) else line for line in FOUR.splitlines(keepends=True))


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A function that puts an `nvidia-smi` on the PATH that prints a given listing."""

    def make(listing):
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\ncat <<'END'\n{listing}END\n")
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return make


def test_listing_is_read_with_models_memory_and_load(machine):
    machine(FOUR)
    found = gpus.read_gpus()
    assert [gpu.index for gpu in found] == ["0", "1", "2", "3"]
    busy = found[1]
    assert (busy.name, busy.total, busy.used, busy.percent) == ("NVIDIA H100", 81559, 40000, 97)
    assert [bool(gpu.busy) for gpu in found] == [False, True, False, False]


def test_values_that_are_not_available_are_unknown():
    (gpu,) = gpus.parse("0, GPU-aa, GRID, [N/A], [Not Supported], [N/A], [N/A], 00000000:1B:00.0\n")
    assert (gpu.total, gpu.used, gpu.percent) == (None, None, None)
    assert (gpu.capability, gpu.busy, gpu.lost) == ("", "", "")


def test_lost_gpu_is_left_out_and_idle_ones_come_first(machine):
    machine(with_lost("2"))
    found = gpus.read_gpus()
    assert [gpu.bus for gpu in found if gpu.lost] == ["0000:A3:00.0"]
    assert gpus.visible(found) == ["0", "3", "1"]


def test_what_cuda_visible_devices_says_is_taken_as_it_is(monkeypatch):
    for given, used in (("3, GPU-bb", ["3", "GPU-bb"]), ("-1", []), ("1,-1,2", ["1"])):  # CUDA stops at -1
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
        assert gpus.visible(gpus.parse(FOUR)) == used, given


def test_workers_get_gpus_of_their_own_and_variables_of_nccl_that_the_user_has_not_set(machine, monkeypatch):
    machine(FOUR)
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    tasks = plan(RequestedCluster(workers=2, replicas_per_worker=2), ["train.py"])
    assert [task.env["CUDA_VISIBLE_DEVICES"] for task in tasks] == ["0,1", "2,3"]
    assert all(task.env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID" for task in tasks)
    assert all(task.env["NCCL_SOCKET_IFNAME"] == "lo" for task in tasks)
    assert all("NCCL_DEBUG" not in task.env for task in tasks)


def test_workers_that_need_fewer_gpus_get_the_idle_ones(machine):
    machine(FOUR)
    tasks = plan(RequestedCluster(workers=3, replicas_per_worker=1), ["train.py"])
    assert [task.env["CUDA_VISIBLE_DEVICES"] for task in tasks] == ["0", "2", "3"]


def test_numbers_of_the_users_own_keep_the_order_in_which_he_counts(machine, monkeypatch):
    machine(FOUR)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    tasks = plan(RequestedCluster(workers=2), ["train.py"])
    assert [task.env["CUDA_VISIBLE_DEVICES"] for task in tasks] == ["2", "0"]
    assert all("CUDA_DEVICE_ORDER" not in task.env for task in tasks)


def test_stages_of_a_pipeline_get_gpus_of_their_own(machine):
    machine(FOUR)
    tasks = plan(RequestedCluster(workers=2, stages=2), ["train.py"])
    shown = {task.name: task.env["CUDA_VISIBLE_DEVICES"] for task in tasks}
    assert shown == {"worker-0": "0", "worker-0-stage-1": "1", "worker-1": "2", "worker-1-stage-1": "3"}
    words = r"workers \(2\) \* stages \(3\) \* replicas per worker \(1\) must not"
    with pytest.raises(ValueError, match=words):
        plan(RequestedCluster(workers=2, stages=3), ["train.py"])


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch\n", "Failed to initialize NVML"),
        ("", "no answer"),
        ("No devices were found\n", ""),
        (FOUR, ""),
    ],
)
def test_doctor_says_what_a_driver_says_that_lists_no_gpu(machine, said, problem):
    machine(said)
    assert gpus.complaint().startswith(problem) and bool(gpus.complaint()) == bool(problem)
    findings = doctor.gpus([], gpus.complaint())
    assert [bool(finding.problem) for finding in findings] == [True] * bool(problem)


def test_too_few_gpus_are_an_error_that_tells_of_the_lost_one(machine):
    machine(with_lost("2"))
    with pytest.raises(ValueError, match=r"visible GPUs \(3, 1 more is lost"):
        plan(RequestedCluster(workers=2, replicas_per_worker=2), ["train.py"])


def test_doctor_says_which_gpu_is_lost_or_busy(machine):
    by_name = {f.name: f for f in doctor.gpus(gpus.parse(with_lost("3")), "")}
    assert "GPU is lost" in by_name["GPU 0000:A3:00.0"].value
    assert "Reset" in by_name["GPU 0000:A3:00.0"].problem
    assert by_name["GPU 0"] == ("devices", "GPU 0", "NVIDIA H100, 81559 MiB, capability 9.0", "", "")
    assert "40000 of 81559 MiB taken, 97 % busy" in by_name["GPU 1"].note
