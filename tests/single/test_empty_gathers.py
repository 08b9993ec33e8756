"""A batch of which a step keeps no sample: TensorFlow's own collectives end the process at a gather of nothing."""

import pytest

PROGRAM = """
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import numpy as np, unisono

class Masked(unisono.Model):
    def test_step(self, data):
        x, kept = data
        return {"sum": tf.reduce_sum(tf.boolean_mask(x, kept)), "count": tf.math.count_nonzero(kept)}

with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    model = Masked()
    model.compile()
x = np.arange(12, dtype="float32").reshape(6, 2)
for kept in ([0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1], [1, 0, 0, 1, 1, 0]):
    print("found", model.evaluate(x, np.array(kept, bool), verbose=0, return_dict=True))
"""


@pytest.mark.process
def test_gather_of_no_samples_on_the_collectives_of_tensorflow_is_empty(forked, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    printed = forked.run(tmp_path / "program.py", folder=tmp_path)
    found = [line.partition("found ")[2] for line in printed.splitlines() if "found " in line]
    assert [eval(line)["sum"] for line in found] == [0.0, 21.0, 1.0 + 13.0 + 17.0], printed[-3000:]
