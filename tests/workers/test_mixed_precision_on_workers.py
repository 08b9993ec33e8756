"""One overflow check for all workers: an overflow on one of them skips the step on both, without a deadlock."""

import runpy
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.process

PROGRAM = Path(__file__).parent / "programs" / "mixed_overflow.py"
FLOAT16 = 4e-3  # float16 weight gradients are sums over samples in 11 bits, rounded separately on each worker


def test_overflow_on_one_worker_skips_the_step_on_all(start_workers):
    run = start_workers("mixed_overflow", count=2)
    expected = runpy.run_path(str(PROGRAM))["run"](tf.distribute.get_strategy())
    run.succeed()
    workers = [dict(np.load(run.out / f"worker-{i}.npz")) for i in range(2)]
    assert expected["skipped_steps"].tolist() == [2, 4]
    for found in workers:
        assert found["skipped_steps"].tolist() == [2, 4]
        assert found["loss_scale"].tolist() == [2.0**13, 2.0**11]
        np.testing.assert_allclose(found["loss"], expected["loss"], rtol=FLOAT16)
        np.testing.assert_allclose(found["weights"], expected["weights"], rtol=FLOAT16, atol=FLOAT16)
        np.testing.assert_array_equal(found["weights"], workers[0]["weights"])
        np.testing.assert_array_equal(found["weights after"], found["weights"])
        assert "the output of layer 'sequential/narrow' (float16" in str(found["error"])
