"""Real processes, killed with SIGKILL at any moment and started again, end with the bits of the one left alone."""

import random
import signal

import kill_driver
import pytest

from unisono.callbacks import latest_backup, list_backups

pytestmark = [pytest.mark.process, pytest.mark.slow]

COMBINATIONS = [
    *((scenario, strategy) for scenario in kill_driver.SCENARIOS for strategy in kill_driver.STRATEGIES),
    *kill_driver.MORE,
]


@pytest.fixture(scope="module")
def driver():
    with kill_driver.Driver() as driver:
        yield driver


@pytest.fixture(scope="module")
def left_alone(driver, tmp_path_factory):
    """The result of a training that was not killed; made when first asked for."""
    results = {}

    def result(scenario, strategy):
        if (scenario, strategy) not in results:
            folder = tmp_path_factory.mktemp("alone")
            order = {"scenario": scenario, "strategy": strategy, "directory": str(folder), "backup": False}
            assert driver.start(order) == 0
            results[scenario, strategy] = kill_driver.read_result(folder / "result")
        return results[scenario, strategy]

    return result


@pytest.mark.parametrize("number", range(len(COMBINATIONS)), ids=["-".join(c) for c in COMBINATIONS])
def test_killed_training_ends_with_the_same_bits(driver, left_alone, tmp_path, number):
    """Every combination is killed twice; over all of them each kind of moment is struck at least three times."""
    scenario, strategy = COMBINATIONS[number]
    rng = random.Random(number)
    kinds = [kill_driver.KINDS[(2 * number + i) % 4] for i in range(2)]
    order = {"scenario": scenario, "strategy": strategy, "directory": str(tmp_path), "backup": True}
    struck = driver.run_killed(order, [kill_driver.Kill.draw(rng, kind) for kind in kinds])
    assert struck >= 1
    result = kill_driver.read_result(tmp_path / "result")
    assert kill_driver.differences(result, left_alone(scenario, strategy)) == []
    assert list_backups(tmp_path / "backup") == [], "the backups are removed when training is done"


@pytest.mark.parametrize(
    ("number", "status", "kind"),
    [(signal.SIGTERM, 143, "step"), (signal.SIGINT, 130, "step"), (signal.SIGTERM, 143, "validation")],
    ids=["sigterm", "ctrl-c", "sigterm-in-validation"],
)
def test_signal_saves_at_the_next_step_and_ends_with_its_status(
    driver, left_alone, tmp_path, number, status, kind
):
    order = {"scenario": "arrays", "strategy": "none", "directory": str(tmp_path), "backup": True}
    nth = 4 if kind == "step" else 1
    assert driver.start(order, kill_driver.Kill(kind, nth, 0.0, number)) == status
    info = latest_backup(tmp_path / "backup")
    assert info.status == "good"
    # Four steps of 16 rows make an epoch of 56; the kill came within the fourth, or in the validation after it.
    assert (info.epoch, info.step) == (0, 4)
    assert driver.start(order) == 0
    result = kill_driver.read_result(tmp_path / "result")
    assert kill_driver.differences(result, left_alone("arrays", "none")) == []
