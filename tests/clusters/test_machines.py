"""Machines of an elastic launch: network namespaces on one bridge, which are killed, cut off and stopped."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "workers" / "programs" / "elastic.py"
TIMEOUT, LATE = 30, 45  # seconds: of the launch; for an import and a restart, on a busy machine
NOTICED = 15 + LATE
pytestmark = [
    pytest.mark.clusters,
    pytest.mark.long,
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]


def ip(*words, check=True):
    return subprocess.run(["ip", *map(str, words)], check=check, capture_output=True, text=True).stdout


class Machine:
    """A network namespace with the address 10.77.0.NUMBER, and the launcher that runs there."""

    def __init__(self, switch, number, folder):
        self.name, self.address, self._log = (
            f"{switch}-{number}",
            f"10.77.0.{number}",
            folder / f"{number}.log",
        )
        self._port = f"{switch[-3:]}p{number}"
        ip("netns", "add", self.name)
        ip("link", "add", "eth0", "netns", self.name, "type", "veth", "peer", self._port, "netns", switch)
        ip("-n", switch, "link", "set", self._port, "master", "br0", "up")
        ip("-n", self.name, "address", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            ip("-n", self.name, "link", "set", device, "up")
        self._switch, self.process = switch, None

    def launch(self, *arguments, nnodes="1:2"):
        words = ("--nnodes", nnodes, "--timeout", TIMEOUT, "--rdzv-endpoint", "10.77.0.1:29500", PROGRAM)
        command = [sys.executable, "-m", "unisono", "launch", *map(str, (*words, *arguments))]
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
        with open(self._log, "a") as log:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", self.name, *command],
                env={**os.environ, **quiet},
                stdout=log,
                stderr=log,
            )

    def printed(self):
        return self._log.read_text()

    def wait_for(self, text, seconds=180.0, count=1):
        """Waits until `text` was printed so often; returns the seconds."""
        began = time.monotonic()
        while self.printed().count(text) < count:
            assert time.monotonic() - began < seconds, f"no {text!r} in\n{self.printed()[-6000:]}"
            time.sleep(0.1)
        return time.monotonic() - began

    def signal(self, number):
        for pid in map(int, ip("netns", "pids", self.name).split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def cut(self, state="down"):
        """Takes the cable out, or puts it in again."""
        ip("-n", self._switch, "link", "set", self._port, state)

    def kill(self):
        """Ends the machine: nobody hears of it again."""
        self.cut()
        self.signal(signal.SIGKILL)

    def end(self):
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()
        ip("netns", "del", self.name, check=False)


@pytest.fixture
def machines(tmp_path):
    """`machines(count)`: so many machines that reach each other."""
    switch, started = f"uni{os.getpid() % 1000:03}", []
    try:
        ip("netns", "add", switch)
        ip("-n", switch, "link", "add", "br0", "type", "bridge")
        ip("-n", switch, "link", "set", "br0", "up")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs `ip` (iproute2) and the right to make network namespaces")

    def start(count):
        started.extend(Machine(switch, number + 1, tmp_path) for number in range(count))
        return started

    yield start
    for machine in started:
        machine.end()
    ip("netns", "del", switch)


def hold(folder, *epochs):
    for epoch in epochs:
        (folder / f"hold-{epoch}").touch()


def release(folder, epoch):
    (folder / f"hold-{epoch}").unlink()


FAULTS = {
    "killed": Machine.kill,
    "cut": Machine.cut,
    "stopped": lambda machine: machine.signal(signal.SIGSTOP),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_lost_machine_is_named_and_training_goes_on_without_it_and_with_a_newcomer(fault, machines, tmp_path):
    first, second, third = machines(3)
    hold(tmp_path, 2, 4)
    for machine in (first, second):
        machine.launch(tmp_path, 6)
    first.wait_for("epoch 2 as 0 of 2")
    FAULTS[fault](second)
    release(tmp_path, 2)
    first.wait_for(f"worker 1 is at {second.address}:", NOTICED)
    first.wait_for("epoch 2 as 0 of 1", TIMEOUT + LATE)
    third.launch(tmp_path, 6)
    third.wait_for("waiting until the run", LATE + 10)
    release(tmp_path, 4)
    assert first.process.wait(120) == third.process.wait(120) == 0
    assert "epoch 5 as 0 of 2" in first.printed()


@pytest.mark.parametrize("fault", FAULTS)
def test_lost_endpoint_ends_the_others_with_75(fault, machines, tmp_path):
    first, second = machines(2)
    hold(tmp_path, 2)
    for machine in (first, second):
        machine.launch(tmp_path, 6)
    second.wait_for("epoch 2 as 1 of 2")
    FAULTS[fault](first)
    release(tmp_path, 2)
    second.wait_for(f"worker 0 is at {first.address}:", NOTICED)
    assert second.process.wait(TIMEOUT + LATE) == 75
    assert f"worker 0 ({first.address}:29500" in second.printed()
