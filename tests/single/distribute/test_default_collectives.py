"""`MirroredStrategy` without `cross_device_ops`: its collectives know less than the reduction that other tests use."""

import pytest

PROGRAM = """
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
import numpy as np, unisono

class Masked(unisono.Model):
    def test_step(self, data):
        x, kept = data
        waves = tf.complex(x[:, 0], x[:, 1])
        return {
            "sum": tf.reduce_sum(tf.boolean_mask(x, kept)),
            "power": tf.abs(tf.reduce_sum(waves)) ** 2,
            "letters": tf.strings.length(tf.strings.reduce_join(tf.where(kept, "", ""))),
            "least": tf.reduce_min(tf.cast(x, tf.uint8)),
            "columns": tf.size(tf.gather(x[:, :0], tf.argsort(x[:, 0]))),
        }

class Table(unisono.Model):
    def __init__(self):
        super().__init__()
        self.table = self.add_weight(shape=(5, 2), initializer="ones")

    def train_step(self, data):
        rows, kept = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(self.table, tf.boolean_mask(rows, kept)) ** 2)
        self.optimizer.apply_gradients([(tape.gradient(loss, self.table), self.table)])
        return {"loss": loss}

def train(strategy, run_eagerly=False):
    with strategy.scope():
        model = Table()
        model.compile(unisono.optimizers.Adam(0.1), run_eagerly=run_eagerly)
    kept = np.array([0, 0, 0, 1, 1, 0, 0, 0, 0], bool)  # no row in the first and the last step
    model.fit(np.arange(9) % 5, kept, batch_size=3, shuffle=False, verbose=0)
    return [variable.numpy() for variable in (model.table, *model.optimizer.variables)]

expected = train(tf.distribute.get_strategy())
for devices, run_eagerly in (["CPU:0", "CPU:1"], False), (["CPU:0", "CPU:1", "CPU:2"], True):
    found = train(tf.distribute.MirroredStrategy(devices), run_eagerly)
    print("differ", max(np.abs(a - b).max() for a, b in zip(found, expected, strict=True)))

with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    model = Masked()
    model.compile()
x = np.arange(12, dtype="float32").reshape(6, 2)
for kept in ([0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1], [1, 0, 0, 1, 1, 0]):
    logs = model.evaluate(x, np.array(kept, bool), verbose=0, return_dict=True)
    print("found", {name: float(value) for name, value in logs.items()})
"""


@pytest.mark.process
def test_default_collectives_gather_and_sum_nothing_and_complex_numbers(forked, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    printed = forked.run(tmp_path / "program.py", folder=tmp_path)
    found = [eval(line.partition("found ")[2]) for line in printed.splitlines() if "found " in line]
    assert [each["sum"] for each in found] == [0.0, 21.0, 1.0 + 13.0 + 17.0], printed[-3000:]
    assert all(abs(each["power"] - (30.0**2 + 36.0**2)) < 1e-2 for each in found)
    assert all(each["least"] == each["letters"] == each["columns"] == 0 for each in found)
    differences = [float(line.split()[-1]) for line in printed.splitlines() if "differ" in line]
    assert len(differences) == 2 and max(differences) < 1e-6, "a table of which no replica names a row stays"
