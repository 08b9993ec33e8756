"""Machines of a launch: network namespaces on one bridge, which are killed, cut off and stopped, or whose disk is full."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "workers" / "programs" / "elastic.py"
TIMEOUT = 30  # seconds, of the launch
LONG = 600  # seconds, after which a machine counts as hanging
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

    def add_interface(self, network, number):
        """A further network with this machine: NETWORK.NUMBER."""
        device, port = f"eth{number}{network[3:5]}", f"{self._port}{network[3:5]}"
        ip("link", "add", device, "netns", self.name, "type", "veth", "peer", port, "netns", self._switch)
        ip("-n", self._switch, "link", "set", port, "master", "br0", "up")
        ip("-n", self.name, "address", "add", f"{network}.{number}/24", "dev", device)
        ip("-n", self.name, "link", "set", device, "up")

    def use_ipv6_alone(self, address):
        ip("-n", self.name, "address", "flush", "dev", "eth0", "scope", "global")
        ip("-n", self.name, "address", "add", f"{address}/64", "dev", "eth0", "nodad")
        self.address = address

    def name_hosts(self, **addresses):
        """Lets processes of this machine resolve names, as /etc/hosts does."""
        folder = Path("/etc/netns", self.name)
        folder.mkdir(parents=True)
        lines = (f"{address} {name}\n" for name, address in addresses.items())
        (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))

    def launch(self, *arguments, nnodes="1:2", restarts=3, endpoint="10.77.0.1:29500"):
        """Starts the launcher; with a number as `nnodes` the run is not elastic."""
        place = ("--node-rank", int(self.address[-1]) - 1) if isinstance(nnodes, int) else ()
        times = ("--timeout", TIMEOUT, "--restarts", restarts)
        words = ("--nnodes", nnodes, *place, *times, "--rdzv-endpoint", endpoint, PROGRAM)
        command = [sys.executable, "-m", "unisono", "launch", *map(str, (*words, *arguments))]
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
        with open(self._log, "a") as log:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", self.name, *command],
                env={**os.environ, **quiet},
                stdout=log,
                stderr=log,
            )

    def printed(self):
        return self._log.read_text()

    def wait_for(self, text, count=1):
        """Waits until `text` was printed so often."""
        until = time.monotonic() + LONG
        while self.printed().count(text) < count:
            assert time.monotonic() < until, f"no {text!r} in\n{self.printed()[-6000:]}"
            time.sleep(0.1)

    def signal(self, number):
        for pid in map(int, ip("netns", "pids", self.name).split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def cut(self, state="down"):
        """Takes the cable out, or puts it in again."""
        ip("-n", self._switch, "link", "set", self._port, state)

    def drop(self, other):
        """Lets packets to another machine vanish, as a firewall with DROP does."""
        nowhere = ("lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent")
        ip("-n", self.name, "neighbor", "replace", other.address, *nowhere)

    def refuse(self, other):
        """Lets no connection to a worker of another machine begin; those from there are accepted."""
        servers = ("to", other.address, "ipproto", "tcp", "dport", "10000-32767")
        ip("-n", self.name, "rule", "add", *servers, "blackhole")

    def weights(self):
        """The bits of the weights at the end."""
        return re.findall(r"joined \d of \d (\w+)", self.printed())

    def kill(self):
        """Ends the machine: nobody hears of it again."""
        self.cut()
        self.signal(signal.SIGKILL)

    def end(self):
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()
        ip("netns", "del", self.name, check=False)
        shutil.rmtree(Path("/etc/netns", self.name), ignore_errors=True)


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
    first.wait_for(f"worker 1 is at {second.address}:")
    first.wait_for("epoch 2 as 0 of 1")
    third.launch(tmp_path, 6)
    third.wait_for("waiting until the run")
    release(tmp_path, 4)
    assert first.process.wait(LONG) == third.process.wait(LONG) == 0
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
    second.wait_for(f"worker 0 is at {first.address}:")
    assert second.process.wait(LONG) == 75
    assert f"worker 0 ({first.address}:29500" in second.printed()


@pytest.fixture
def undisturbed(tmp_path):
    """`undisturbed(epochs)`: the bits of two workers of one machine that nothing disturbed."""

    def train(epochs):
        folder = tmp_path / "undisturbed"
        folder.mkdir()
        command = [sys.executable, "-m", "unisono", "launch", "--workers", "2", PROGRAM, folder, epochs]
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(
            [*map(str, command)], env={**os.environ, **quiet}, capture_output=True, text=True, check=True
        )
        return set(re.findall(r"joined \d of 2 (\w+)", done.stdout))

    return train


def use_ipv6(first, second):
    first.use_ipv6_alone("fd77::1")
    second.use_ipv6_alone("fd77::2")
    return "[fd77::1]:29500"


def use_names(first, second):
    """As Debian does, the first host's own name is a loopback address there."""
    first.name_hosts(**{"node-a.example.org": "127.0.1.1", "node-b.example.org": second.address})
    second.name_hosts(**{"node-b.example.org": "127.0.1.1", "node-a.example.org": first.address})
    return "node-a.example.org:29500"


def use_names_of_ipv6(first, second):
    use_ipv6(first, second)
    return use_names(first, second)


def use_second_interface(first, second):
    """Both networks reach both machines, and names say the first."""
    for machine in (first, second):
        machine.add_interface("10.78.0", int(machine.address[-1]))
    return "10.78.0.1:29500"


@pytest.mark.parametrize("network", [use_ipv6, use_names, use_names_of_ipv6, use_second_interface])
@pytest.mark.parametrize("nnodes", ["1:2", 2])
def test_machines_of_other_networks_train_and_name_the_one_that_is_lost(
    nnodes, network, machines, tmp_path, undisturbed
):
    both = machines(2)
    endpoint = network(*both)
    hold(tmp_path, 1)
    for machine in both:
        machine.launch(tmp_path, 3, nnodes=nnodes, endpoint=endpoint)
    both[0].wait_for("epoch 1 as 0 of 2")
    for pid in {*map(int, ip("netns", "pids", both[1].name).split())} - {both[1].process.pid}:
        os.kill(pid, signal.SIGKILL)  # the worker, and not its launcher
    release(tmp_path, 1)
    where = "10.78.0.2" if network is use_second_interface else both[1].address
    address = f"[{where}]" if ":" in where else where
    both[0].wait_for(f"worker 1 is at {address}:")
    if nnodes == 2:
        end_with(both, undisturbed(3))
    else:  # with the second machine, if it is back in time
        assert both[0].process.wait(LONG) == 0


def start_two(machines, folder, epoch, epochs):
    """Two machines that are held at an epoch."""
    both = machines(2)
    hold(folder, epoch)
    for machine in both:
        machine.launch(folder, epochs, nnodes=2)
    both[0].wait_for(f"epoch {epoch} as 0 of 2")
    return both


def end_with(both, expected):
    """All end well, with these bits."""
    assert [machine.process.wait(LONG) for machine in both] == [0, 0]
    assert {bits for machine in both for bits in machine.weights()} == expected


@pytest.mark.parametrize("when", ["before", "during"])
def test_firewall_between_two_workers_is_found_and_names_both_hosts(when, machines, tmp_path):
    first, second, third = three = machines(3)
    hold(tmp_path, *[1] * (when == "during"))
    if when == "before":
        second.drop(third)
        third.drop(second)
    for machine in three:
        machine.launch(tmp_path, 3, nnodes=3, restarts=0)
    if when == "during":
        first.wait_for("epoch 1 as 0 of 3")
        second.drop(third)
        third.drop(second)
        release(tmp_path, 1)
    for machine in three:
        machine.wait_for("unisono: lost contact: ")
        assert machine.process.wait(LONG) == 1
        assert "lost a worker on another machine" in machine.printed()
        (named,) = set(re.findall(r"unisono: lost contact: (.*)", machine.printed()))
        others = {second.address, third.address} - {machine.address}
        assert others <= set(re.findall(r"is at ([\d.]+):", named)) <= {second.address, third.address}


def test_port_that_no_worker_needs_may_be_closed(machines, tmp_path):
    """Worker 2 connects to worker 1, and never worker 1 to worker 2: others wait for longer than a firewall may cost."""
    _, second, third = three = machines(3)
    second.refuse(third)
    hold(tmp_path, 1)
    for machine in three:
        machine.launch(tmp_path, 3, nnodes=3, restarts=0)
    second.wait_for("epoch 1 as 1 of 3")
    time.sleep(25)
    release(tmp_path, 1)
    assert [machine.process.wait(LONG) for machine in three] == [0, 0, 0]
    assert "lost contact" not in second.printed()


@pytest.mark.parametrize("seconds", [5, 1.4 * TIMEOUT])
def test_link_that_heals_costs_no_bit(seconds, machines, tmp_path, undisturbed):
    """A short cut may cost a restart: a lost heartbeat is sent again later each time."""
    both = start_two(machines, tmp_path, 1, 3)
    both[1].cut()
    release(tmp_path, 1)
    time.sleep(seconds)
    both[1].cut("up")
    end_with(both, undisturbed(3))
    for machine, other in zip(both, both[::-1]):
        lost = f"is at {other.address}:" in machine.printed()
        assert lost is ("restart 1 of" in machine.printed())
        assert lost or seconds < TIMEOUT


def test_full_disk_of_the_chief_is_an_error_on_all_and_costs_no_bit(machines, tmp_path, undisturbed):
    small = tmp_path / "backup"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], check=True)
    try:
        both = start_two(machines, tmp_path, 2, 4)
        subprocess.run(f"head -c 2m /dev/zero > {small}/filler", shell=True, stderr=subprocess.DEVNULL)
        release(tmp_path, 2)
        for machine in both:
            machine.wait_for("No space left on device, 0 bytes free); earlier files are unchanged")
        both[1].wait_for(f"worker 0 is at {both[0].address}:")
        (small / "filler").unlink()
        end_with(both, undisturbed(4))
        assert "Resuming from" in both[0].printed()
    finally:
        subprocess.run(["umount", "--lazy", small], check=True)


def test_second_attempt_of_a_job_takes_over_and_the_first_ends(tmp_path, undisturbed):
    """As two pods of which each has process numbers of its own, and the name of their job as UNISONO_RUN."""
    hold(tmp_path, 1)
    logs = [tmp_path / "first.log", tmp_path / "second.log"]
    words = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-m", "unisono", "launch"]
    common = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
    pods = []
    try:
        for log in logs:
            with open(log, "w") as file:
                command = [*words, "--workers", "2", "--restarts", "3", str(PROGRAM), str(tmp_path), "5"]
                env = {**os.environ, **common, "UNISONO_RUN": "job"}
                pods.append(subprocess.Popen(command, env=env, stdout=file, stderr=file))
            while "epoch 1 as 0 of 2" not in log.read_text():
                assert pods[-1].poll() is None, log.read_text()
                time.sleep(0.1)
        release(tmp_path, 1)
        assert [pod.wait(LONG) for pod in pods] == [1, 0]
    finally:
        for pod in pods:
            pod.kill()
            pod.wait()
    first, second = (log.read_text() for log in logs)
    assert "has been taken over by process" in first and "not restarting" in first
    assert not re.search(r"joined \d of", first) and "Resuming from" in second
    assert set(re.findall(r"joined \d of 2 (\w+)", second)) == undisturbed(5)
