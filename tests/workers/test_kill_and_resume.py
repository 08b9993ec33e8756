"""Processes killed with SIGKILL at any moment and restarted match an uninterrupted run bit for bit."""

import random
import signal

import kill_driver
import pytest

from unisono.callbacks import latest_backup, list_backups

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture(scope="module")
def driver(forked, tmp_path_factory):
    return kill_driver.Driver(forked, tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def left_alone(driver, tmp_path_factory):
    """The result of an uninterrupted run, computed on first use."""
    results = {}

    def result(scenario, strategy):
        if (scenario, strategy) not in results:
            folder = tmp_path_factory.mktemp("alone")
            order = {"scenario": scenario, "strategy": strategy, "directory": str(folder), "backup": False}
            assert driver.start(order) == 0
            results[scenario, strategy] = kill_driver.read_result(folder / "result")
        return results[scenario, strategy]

    return result


@pytest.mark.short("tfdata-mirrored2")
@pytest.mark.parametrize("scenario, strategy", kill_driver.COMBINATIONS)
def test_killed_training_ends_with_the_same_bits(driver, left_alone, tmp_path, scenario, strategy):
    """Every combination is killed twice; together the kills hit every kind of moment."""
    number = kill_driver.COMBINATIONS.index((scenario, strategy))
    rng = random.Random(number)
    kinds = [kill_driver.KINDS[(2 * number + i) % 4] for i in range(2)]
    order = {"scenario": scenario, "strategy": strategy, "directory": str(tmp_path), "backup": True}
    struck = driver.run_killed(order, [kill_driver.Kill.draw(rng, kind) for kind in kinds])
    assert struck >= 1
    result = kill_driver.read_result(tmp_path / "result")
    assert kill_driver.differences(result, left_alone(scenario, strategy)) == []
    assert list_backups(tmp_path / "backup") == [], "completed runs remove their backups"


@pytest.mark.short("pydataset_own_shuffle")
@pytest.mark.parametrize("name", random.Random(2).sample(kill_driver.EXACT_INPUTS, 2))
def test_killed_training_with_a_drawn_input_ends_with_the_same_bits(driver, left_alone, tmp_path, name):
    """This includes a layer and a callback with their own generators, and shuffled validation data."""
    rng = random.Random(name)
    order = {"scenario": name, "strategy": "none", "directory": str(tmp_path), "backup": True}
    struck = driver.run_killed(order, [kill_driver.Kill.draw(rng, kind) for kind in ("step", "validation")])
    assert struck >= 1
    result = kill_driver.read_result(tmp_path / "result")
    assert kill_driver.differences(result, left_alone(name, "none")) == []


def test_signals_save_at_the_next_step_and_end_with_their_status(driver, left_alone, tmp_path):
    """One run is asked to end three times: in a step, by Ctrl-C in a step, and during validation."""
    order = {"scenario": "arrays", "strategy": "none", "directory": str(tmp_path), "backup": True}
    # Four steps of 16 samples make an epoch of 56; each signal arrives in the last step, or in the validation after it.
    for number, status, kind, nth, epoch in (
        (signal.SIGTERM, 143, "step", 4, 0),
        (signal.SIGINT, 130, "step", 4, 1),
        (signal.SIGUSR1, 143, "validation", 2, 2),
    ):
        assert driver.start(order, kill_driver.Kill(kind, nth, 0.0, number)) == status
        info = latest_backup(tmp_path / "backup")
        assert info.status == "good"
        assert (info.epoch, info.step) == (epoch, 4)
    assert driver.start(order) == 0
    result = kill_driver.read_result(tmp_path / "result")
    assert kill_driver.differences(result, left_alone("arrays", "none")) == []


def test_program_whose_backups_are_all_damaged_ends_with_its_own_status(driver, tmp_path):
    order = {"scenario": "arrays", "strategy": "none", "directory": str(tmp_path), "backup": True}
    assert driver.start(order, kill_driver.Kill("save", 3, 0.0)) == -signal.SIGKILL
    for backup in (found := list_backups(tmp_path / "backup")):
        backup.path.write_bytes(backup.path.read_bytes()[:-9])
    assert found and driver.start(order) == 65
    assert len(list_backups(tmp_path / "backup")) == len(found)
