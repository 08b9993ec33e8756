"""Logs and writes of custom steps on parameter servers are those of one device."""

import helpers
import pytest

PROGRAM = f"""{helpers.SERVERS}
import contextlib
import unisono

class Steps(unisono.Model):
    def __init__(self):
        super().__init__()
        self.last = keras.layers.Dense(1, kernel_initializer="ones")
        self.last.build((None, 2))
        self.total = keras.metrics.Mean(name="total")
        self.steps = self.add_weight(shape=(), initializer="zeros", trainable=False)
        self.samples = tf.Variable(0, trainable=False)

    def train_step(self, data):
        x, y = data[:2]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.last(x) - y) ** 2)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables))
        self.total.update_state(loss)
        return {{"loss": loss, "total": 2 * loss, "mean": self.total.result()}}

    def test_step(self, data):
        x, y = data[:2]
        loss = tf.reduce_mean((self.last(x) - y) ** 2)
        self.total.update_state(loss)
        return {{"loss": self.total.result(), "total": loss}}  # at the end the result of the metric

    def predict_step(self, data):
        self.steps.assign_add(1.0)
        self.samples.assign_add(tf.shape(data)[0])
        return self.last(data)

x, y = np.arange(22.0, dtype="float32").reshape(11, 2) / 22, np.ones((11, 1), "float32")
found = []
for scope in (strategy.scope(), contextlib.nullcontext()):
    with scope:
        model = Steps()
        model.compile(optimizers.SGD(0.1))
    logs = [model.train_on_batch(x[a:b], y[a:b], return_dict=True) for a, b in ((0, 5), (5, 8), (8, 10), (10, 11))]
    logs.append(model.evaluate(x, y, batch_size=4, verbose=0, return_dict=True))
    assert logs[-1]["total"] == logs[-1]["loss"] == model.total.result(), logs
    model.predict(x, batch_size=4, verbose=0)
    state = model.steps.numpy(), model.samples.numpy(), *map(np.ravel, model.last.get_weights())
    found.append([[each[name] for name in sorted(each)] for each in logs] + [np.hstack(state)])
    assert sorted(logs[0]) == ["loss", "mean", "total"] and state[:2] == (3, 11), (logs[0], state)
for servers, one in zip(*found):
    np.testing.assert_allclose(servers, one, rtol=1e-6)
print("compared", logs)
"""


@pytest.mark.process
def test_logs_with_names_of_metrics_and_writes_of_predict_equal_one_device(forked, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    assert "compared" in forked.run(tmp_path / "program.py", folder=tmp_path)
