"""Steps on parameter servers write plain variables by every method that TensorFlow's variables have."""

import helpers
import pytest

PROGRAM = f"""{helpers.SERVERS}
import unisono

WRITES = dict(
    place=lambda v: v[0].assign(2.0),
    places=lambda v: v[1:3].assign(v[2:4] + 1.0),
    column=lambda v: v[..., -1].assign(3.0),
    added=lambda v: v.scatter_nd_add([[1]], [1.0]),
    scattered=lambda v: v.scatter_update(tf.IndexedSlices([1.0], [2])),
)

class Writes(unisono.Sequential):
    def train_step(self, data):
        for name, write in WRITES.items():
            write(self.written[name])
        return super().train_step(data)

with strategy.scope():
    model = Writes([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizers.SGD(0.1), "mse")
    model.written = {{name: tf.Variable(tf.zeros(4), trainable=False) for name in WRITES}}
x = np.ones((4, 2), "float32")
model.fit(x, x[:, :1], batch_size=4, verbose=0)
print("written", {{name: variable.numpy().tolist() for name, variable in model.written.items()}})
"""
WRITTEN = {
    "place": [2.0, 0.0, 0.0, 0.0],
    "places": [0.0, 1.0, 1.0, 0.0],
    "column": [0.0, 0.0, 0.0, 3.0],
    "added": [0.0, 1.0, 0.0, 0.0],
    "scattered": [0.0, 0.0, 1.0, 0.0],
}


@pytest.mark.process
def test_slices_and_scatters_on_parameter_servers_are_written(forked, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    printed = forked.run(tmp_path / "program.py", folder=tmp_path)
    assert f"written {WRITTEN}" in printed, printed[-3000:]
