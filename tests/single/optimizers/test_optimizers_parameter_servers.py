"""Under parameter servers the update counter loses no increment of any worker."""

import helpers
import pytest

PROGRAM = f"""{helpers.SERVERS}
with strategy.scope():
    v, table = keras.Variable(np.ones(2)), keras.Variable(np.ones((4, 2)))
    optimizer = optimizers.SGD(0.001, weight_decay=0.1, global_clipnorm=1.0)
    counted = [keras.metrics.Sum(), keras.metrics.TruePositives()]

@tf.function
def step():
    def on_worker():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(v**2) + tf.reduce_sum(tf.gather(table.value, [1, 1, 2]))
        optimizer.minimize(loss, [v, table], tape=tape)
        counted[0].update_state(1.0)
        counted[1].update_state([1.0], [1.0])
    strategy.run(on_worker)

for _ in range(200):
    coordinator.schedule(step)
coordinator.join()
assert optimizer.iterations.numpy() == 200, optimizer.iterations.numpy()
assert [float(np.squeeze(metric.result())) for metric in counted] == [200.0, 200.0], counted
assert np.isfinite(v.numpy()).all() and (table.numpy()[1] < table.numpy()[2]).all()
print("counted", optimizer.iterations.numpy())
"""


@pytest.mark.process
def test_200_scheduled_steps_are_200_counted_updates(forked, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    printed = forked.run(tmp_path / "program.py", folder=tmp_path)
    assert "counted 200" in printed, printed[-3000:]
