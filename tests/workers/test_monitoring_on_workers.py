"""Monitoring output of a run on two workers: written once, by the chief, with the values of both."""

import pytest

from unisono.callbacks.report.page import slow_worker
from unisono.callbacks.report.runs import read_run

pytestmark = [pytest.mark.process, pytest.mark.slow]


def test_report_names_both_workers_and_the_slow_one_and_all_stop_at_the_same_anomaly(start_workers):
    run = start_workers("monitored", count=2)
    run.succeed()
    report = read_run(run.out / "report.jsonl")
    assert report.how == "finished" and report.facts["strategy"]["replicas"] == 2
    assert [len(epoch["workers"]) for epoch in report.epochs] == [2, 2]
    waited = [worker["waited"][0] for worker in report.epochs[-1]["workers"]]
    assert waited == [1000.0 * 30, 0.0], "two epochs of 15 steps"
    assert slow_worker(report).startswith("Worker 1 on ")
    assert "Epoch 2/2" in run.printed(0) and "Epoch" not in run.printed(1)
    assert len(list((run.out / "tensorboard").rglob("events*"))) == 1
    assert len((run.out / "log.jsonl").read_text().splitlines()) == 2
    for index in (0, 1):
        assert "anomaly 8 ['sequential/last/bias', 'sequential/last/kernel'] 1" in run.printed(index)
