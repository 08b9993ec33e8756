"""Elastic launches on loopback: workers come and go, and the weights are those of a run that nothing disturbed."""

import os
import signal
import time

import numpy as np
import pytest
from workers.conftest import PROGRAMS, ROOT

from unisono.distribute.workers.addresses import free_ports

pytestmark = pytest.mark.process
TOLERANCE = 1e-12  # float64: sums are added in another order
PROGRAM = PROGRAMS / "elastic.py"


def weights_of(text):
    """The places of the workers that have ended, and their weights."""
    lines = [line.split("joined ")[1].split() for line in text.splitlines() if "joined " in line]
    return {" ".join(words[:3]): np.frombuffer(bytes.fromhex(words[3])) for words in lines}


def check_two_workers(printed, expected):
    """Both workers of the last attempt have ended with these weights."""
    found = weights_of("\n".join(printed))
    assert sorted(found) == ["0 of 2", "1 of 2"], printed
    for weights in found.values():
        np.testing.assert_allclose(weights, expected, rtol=TOLERANCE, atol=TOLERANCE)


class Run:
    """The launchers of one elastic run, which share a folder and an endpoint."""

    def __init__(self, launch_forks, folder):
        self._launch, self.folder, self.launched = launch_forks, folder, []
        self.words = ()
        self._common = ("--nnodes", "1:2", "--rdzv-endpoint", f"127.0.0.1:{free_ports(1)[0]}")

    def start(self, timeout, epochs, *options):
        self.launched.append(
            self._launch(
                *self._common, "--timeout", timeout, *options, PROGRAM, self.folder, epochs, *self.words
            )
        )
        return len(self.launched) - 1

    def wait_for(self, number, text):
        while text not in self.launched[number].printed():
            assert self.launched[number].poll() is None, self.launched[number].communicate()
            time.sleep(0.05)

    def hold(self, *epochs):
        for epoch in epochs:
            (self.folder / f"hold-{epoch}").touch()

    def release(self, epoch):
        (self.folder / f"hold-{epoch}").unlink()

    def kill(self, number):
        """Kills a launcher and its workers, as the loss of the machine does."""
        os.kill(self.launched[number].pid, signal.SIGKILL)

    def end(self, *numbers):
        """Waits for launchers that must end well; returns their output."""
        printed = [self.launched[number].communicate() for number in numbers]
        assert not any(self.launched[number].returncode for number in numbers), printed
        return ["\n".join(each) for each in printed]


@pytest.fixture
def run(launch_forks, tmp_path):
    return Run(launch_forks, tmp_path)


@pytest.fixture
def undisturbed(forked, tmp_path):
    """`undisturbed(epochs)`: the weights of the program in one process."""

    def train(epochs):
        folder = tmp_path / "undisturbed"
        folder.mkdir()
        files = {kind: folder / kind for kind in ("out", "err")}
        env = {"UNISONO_REPLICAS_PER_WORKER": "1"}
        assert forked.start(PROGRAM, folder, epochs, "eager", folder=ROOT, env=env, **files).wait() == 0
        return weights_of(files["out"].read_text())["0 of 1"]

    return train


def test_newcomer_joins_at_the_end_of_an_epoch_and_the_weights_are_those_of_one_process(run, undisturbed):
    run.hold(0)
    run.words = ("alone",)
    first = run.start(600, 2)
    run.wait_for(first, "epoch 0 as 0 of 1")
    run.words = ()
    second = run.start(600, 2)
    run.wait_for(second, "waiting until the run")
    run.release(0)
    printed = run.end(first, second)
    assert "restart with the machine that joined" in printed[0]
    check_two_workers(printed, undisturbed(2))


@pytest.mark.long
def test_run_that_loses_a_machine_and_its_first_process_and_gets_another_has_the_same_weights(
    run, undisturbed
):
    run.hold(1, 2, 4)
    first, second = run.start(30, 6), run.start(30, 6)
    run.wait_for(first, "epoch 1 as 0 of 2")
    rank_0 = next(
        pid for pid, env in run.launched[first].environments().items() if env["UNISONO_RANK"] == "0"
    )
    os.kill(rank_0, signal.SIGKILL)  # its launcher starts it again
    run.release(1)
    run.wait_for(first, "epoch 2 as 0 of 2")
    run.kill(second)
    run.release(2)
    run.wait_for(first, "epoch 4 as 0 of 1")
    third = run.start(30, 6)
    run.wait_for(third, "waiting until the run")
    run.release(4)
    printed = run.end(first, third)
    assert "epoch 5 as 0 of 2" in printed[0]
    expected = undisturbed(6)
    for weights in weights_of("\n".join(printed)).values():
        np.testing.assert_allclose(weights, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.long
def test_machine_that_comes_back_gives_the_same_bits_as_one_that_never_left(run, launch_forks, tmp_path):
    calm = Run(launch_forks, tmp_path / "calm")
    calm.folder.mkdir()
    expected = weights_of("\n".join(calm.end(calm.start(60, 3), calm.start(60, 3))))
    run.hold(1)
    first, second = run.start(60, 3), run.start(60, 3)
    run.wait_for(first, "epoch 1 as 0 of 2")
    run.kill(second)
    third = run.start(60, 3)
    run.release(1)
    found = weights_of("\n".join(run.end(first, third)))
    assert sorted(found) == sorted(expected) == ["0 of 2", "1 of 2"]
    for place, weights in found.items():
        assert weights.tobytes() == expected[place].tobytes()


@pytest.mark.long
def test_mesh_whose_batch_axis_shrinks_and_grows_has_the_weights_of_one_process(run, undisturbed):
    """Two workers with two devices, then one, then two again: the batch is divided by two, by one, and by two."""
    run.hold(1, 3)
    start = lambda: run.start(60, 5, "--replicas-per-worker", 2)  # noqa: E731
    run.words = ("mesh",)
    first, second = start(), start()
    run.wait_for(first, "epoch 1 as 0 of 2")
    run.kill(second)
    run.release(1)
    run.wait_for(first, "epoch 3 as 0 of 1")
    third = start()
    run.wait_for(third, "waiting until the run")
    run.release(3)
    printed = run.end(first, third)
    assert "epoch 4 as 0 of 2" in printed[0]
    check_two_workers(printed, undisturbed(5))


@pytest.mark.long
def test_lost_endpoint_ends_the_other_launcher_with_75_and_is_named(run):
    run.hold(1)
    first, second = run.start(15, 3), run.start(15, 3)
    run.wait_for(second, "epoch 1 as 1 of 2")
    run.kill(first)
    run.release(1)
    _, err = run.launched[second].communicate()
    assert run.launched[second].returncode == 75 and "did not start within 15 s" in err, err
    assert "the machine of the endpoint is lost" in err


@pytest.mark.long
def test_launcher_that_sigterm_ends_saves_and_the_other_goes_on_without_it(run, undisturbed):
    run.hold(1)
    first, second = run.start(15, 3), run.start(15, 3)
    run.wait_for(first, "epoch 1 as 0 of 2")
    run.wait_for(second, "epoch 1 as 1 of 2")
    os.kill(run.launched[second].pid, signal.SIGTERM)
    run.wait_for(second, "SIGTERM")
    run.release(1)
    printed = run.end(first)[0]
    assert run.launched[second].communicate() and run.launched[second].returncode == 143
    assert "epoch 1 as 0 of 1" in printed and "restart 1" not in printed, printed
    np.testing.assert_allclose(weights_of(printed)["0 of 1"], undisturbed(3), rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.long
def test_machine_whose_script_fails_is_left_behind_and_the_others_go_on(run):
    """It ends after its restarts, with the status of its script; the others do not count those."""
    run.hold(1)
    first, second = run.start(15, 3), run.start(15, 3, "--restarts", 0)
    run.wait_for(second, "epoch 1 as 1 of 2")
    worker = next(iter(run.launched[second].environments()))
    os.kill(worker, signal.SIGKILL)
    run.release(1)
    assert "epoch 1 as 0 of 1" in run.end(first)[0]
    assert run.launched[second].communicate() and run.launched[second].returncode == 137
