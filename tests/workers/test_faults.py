"""A worker that dies, hangs, fails or never starts causes an error on the others, never a hang.

The others exit with 75, so that a scheduler starts them again, unless the program of the worker failed.
"""

import os
import re

import pytest

pytestmark = pytest.mark.process

TIMEOUT = 120  # UNISONO_TIMEOUT of the workers; then the clock of the waiting one runs 20 times as fast

LOST = {
    "killed": r"stopped sending heartbeats|Connection reset|failed to connect|lost contact with worker 1",
    "sleeps": r"lost contact with worker 1: worker 0 has waited \d+ s .*UNISONO_TIMEOUT \(now 120 s\)",
    "raises": r"worker 1 failed: ValueError: my own mistake",
}


def test_lost_worker_is_an_error_on_the_other(start_workers):
    clusters = {fault: start_workers("faults", arguments=[fault], timeout=TIMEOUT) for fault in LOST}
    for workers in clusters.values():  # they wait in parallel
        workers.wait_for_text(0, "at step 50")
    for fault, workers in clusters.items():
        assert workers.processes[0].wait() == (1 if fault == "raises" else os.EX_TEMPFAIL), fault
        printed = workers.printed(0)
        assert re.search(LOST[fault], printed), printed


def test_worker_that_never_comes_is_named(start_workers):
    workers = start_workers("faults", arguments=["none"], start=1, timeout=3)
    (ended,) = workers.wait()
    assert ended.code == os.EX_TEMPFAIL
    assert re.search(r"TimeoutError: worker 1 \(127.0.0.1:\d+\) did not start within 3 s", ended.err)


def test_workers_that_differ_are_rejected_with_a_sentence_on_each(start_workers):
    workers = start_workers("differs")
    workers.succeed()
    for index in range(2):
        printed = workers.printed(index)
        assert re.search(
            r"samples: ValueError: the number of training samples must be the same on all workers for fit. "
            r"Received: 20 on worker 0, 21 on worker 1.",
            printed,
        ), printed
        assert re.search(
            r"width: ValueError: variable \d+ must be the same on all workers for the creation of variables. "
            r"Received: 'float32\(2, 3\)' on worker 0, 'float32\(2, 4\)' on worker 1. .* This worker has 'kernel'.",
            printed,
        ), printed
        sharded = "ValueError: `x` has `shard(2, 0)` on worker 0 and `shard(2, 1)` on worker 1"
        trained = ("part for validation", "seeded", "function", "sharding off", "files", "unseeded", "same")
        trained += ("unsharded on purpose", "local files")
        doubled = "`x` is a function of tf.distribute.InputContext that returns the same samples for each of 2 workers"
        for line in (
            "epochs: ValueError: epochs must be the same on all workers for fit. Received: 1 on worker 0",
            "generator: ValueError: The input must yield the same global batches on every worker.",
            "activation: ValueError: activation of layers[1] of the model must be the same",
            "clipping: ValueError: clipnorm of the optimizer must be the same",
            *(f"unsharded {name}: ValueError: {doubled}" for name in ("function", "for validation")),
            *(f"{name}: {sharded}" for name in ("sharded", "sharded and distributed")),
            *(f"{name}: went through" for name in trained),
            "silent: []",
            "orders: 4",
            "own values: ValueError: The input must yield the same global batches on every worker. `x` yields different",
            "own generator: ValueError: The input must yield the same global batches on every worker. `x` yields different",
            "warned: ['`x` differs between worker 1 and worker 0 (in data, files, constants or functions)",
        ):
            assert line in printed, printed


def test_workers_with_different_scripts_are_rejected(start_workers):
    workers = start_workers(["faults", "collectives"], arguments=["none"])
    ended = workers.wait()
    assert all(one.code == 1 for one in ended)
    assert all("worker 1 " in one.err and "runs a different script from worker 0" in one.err for one in ended)
