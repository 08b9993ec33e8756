"""A user's program for type checkers: `test_installation.py` expects an error where a comment says so."""

import keras
import numpy as np
import tensorflow as tf

import unisono

unisono.mixed_precision.set_global_policy("float32")
clip = unisono.optimizers.ClipByGlobalNorm(1.0)
adam = unisono.optimizers.Adam(1e-3, beta_1=0.8, gradient_transformers=[clip])
model = unisono.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
model.compile(adam, loss="mse", metrics=["mae"], jit_compile="auto")
x = np.zeros((8, 4), "float32")
backup = unisono.callbacks.BackupAndRestore("backup")
history = model.fit(x, x, per_replica_batch_size=4, epochs=2, callbacks=[backup])
print(history.history, model.evaluate(x, x), model.predict(x), adam.compute_gradients)
print(unisono.distribute.global_mean(tf.constant([1.0])), unisono.installed_here)

model.fit(x, x, epoch=2)  # error: parameter "epoch" of type "Never"
model.evaluate(x, x, per_replica_batch=4)  # error: parameter "per_replica_batch" of type "Never"
unisono.optimizers.Adam(gradient_transformer=[clip])  # error: No parameter named "gradient_transformer"
unisono.callbacks.BackupAndRestore(directori=1)  # error: No parameter named "directori"
unisono.distribute.global_mean()  # error: missing for parameter "values"
unisono.optimizers.Adan  # error: "Adan" is not a known attribute  # noqa: B018
unisono.Sequentiel  # error: "Sequentiel" is not a known attribute  # noqa: B018
unisono.Model(model.inputs, model.outputs).fit(epoch=2)  # error: parameter "epoch" of type "Never"
