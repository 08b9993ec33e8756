"""Sharded training state on real workers (optimizer: ZeRO-2, weights: ZeRO-3) matches a single device."""

import runpy
from pathlib import Path

import helpers
import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.process

PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.short("2-2-optimizer")
@pytest.mark.parametrize(("count", "replicas", "level"), [(2, 2, "optimizer"), (3, 1, "weights")])
def test_sharded_state_on_workers_gives_the_results_of_one_device(
    start_workers, tmp_path, count, replicas, level
):
    program = runpy.run_path(str(PROGRAMS / "sharded.py"))
    one_device = program["run"](tf.distribute.get_strategy(), tmp_path, tmp_path, level)
    run = start_workers("sharded", count=count, replicas=replicas)
    run.succeed()
    found = [dict(np.load(run.out / f"worker-{i}.npz")) for i in range(count)]
    for one in found:
        assert one.keys() == one_device.keys()
        assert one.pop("parts") == count - 1  # each other worker wrote its shards
        # Relative to an all-reduce of the gradients; the excess is the loss, the norm and the padding. Of the four sharded
        # weights the second is all-gathered twice: the last two are still whole when the backward pass begins, and the input
        # of the first layer has no gradient.
        expected = 1.0 if level == "optimizer" else (9 * 12_000 + 2 * 2_024) / (2 * 50_024)
        assert expected <= one.pop("traffic") < expected + 0.02
        for name, got in one.items():
            helpers.assert_close(got, one_device[name], helpers.FLOAT64, name)
            np.testing.assert_array_equal(got, found[0][name], err_msg=name)  # bitwise identical
            if name.startswith("resumed"):
                np.testing.assert_array_equal(got, one[name.replace("resumed", "accumulating")], err_msg=name)
