"""Backups of several workers: one receives SIGTERM, all save at the same step, and resume from it together."""

import pytest

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.mark.parametrize(("workers", "replicas"), [(2, 2)])
def test_sigterm_to_one_worker_saves_on_all_and_the_resumed_run_has_the_same_bits(
    start_workers, workers, replicas
):
    run = start_workers("resume", count=workers, replicas=replicas)
    run.succeed()
    for index in range(workers):
        printed = run.printed(index)
        assert "left with 143 at 1 3 good" in printed, printed
        assert "variables True history True logs True" in printed, printed
    assert "Resuming from" in run.printed(0)
    assert "Resuming from" not in run.printed(1)
