"""Prints what a real tracker logs in plain Keras and in Unisono, without a network: `python -m real_trackers wandb FOLDER`.

A process of its own, because trackers leave threads, files and environment variables behind.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

import unisono

STEPS, EPOCHS = 24, 2
X = np.random.default_rng(1).normal(size=(4 * STEPS, 3)).astype("float32")


class Calls(keras.callbacks.Callback):
    """Counts compiled calls."""

    waits_for_compiled_calls, number = True, 0

    def on_train_batch_end(self, batch, logs=None):
        self.number += 1


def wandb(folder: str) -> Iterator[Any]:
    wandb, logged = importlib.import_module("wandb"), []
    run = wandb.init(mode="offline", dir=folder, settings=wandb.Settings(silent=True))
    wandb.log = logged.append
    yield importlib.import_module("wandb.integration.keras").WandbMetricsLogger(log_freq="batch")
    run.finish()
    names = ("batch/batch_step", "batch/loss", "batch/learning_rate")
    yield [[float(each[name]) for name in names] for each in logged if "batch/loss" in each]


def mlflow(folder: str) -> Iterator[Any]:
    mlflow = importlib.import_module("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    run = mlflow.start_run()
    yield importlib.import_module("mlflow.keras").MlflowCallback(log_every_epoch=False, log_every_n_steps=1)
    mlflow.end_run()
    mlflow.flush_async_logging()
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
    yield sorted([each.step, each.value] for each in history)


def swanlab(folder: str) -> Iterator[Any]:
    swanlab, logged = importlib.import_module("swanlab"), []
    swanlab.init(mode="disabled", log_dir=folder)
    swanlab.log = lambda data, step=None: logged.append((step, data))
    yield importlib.import_module("swanlab.integration.keras").SwanLabCallback(log_freq="batch")
    swanlab.finish()
    found = [(step, each) for step, each in logged if "batch/loss" in each]
    yield [[step, float(each["batch/loss"]), float(each["batch/learning_rate"])] for step, each in found]


def comet_ml(folder: str) -> Iterator[Any]:
    comet, logged = importlib.import_module("comet_ml"), []
    experiment = comet.OfflineExperiment(offline_directory=folder, log_code=False, log_graph=False)
    experiment._log_metric = lambda name, value, **more: logged.append((name, value, more.get("step")))
    yield experiment.get_callback("keras")
    experiment.end()
    yield [[step, float(value)] for name, value, step in logged if name == "batch_loss"]


def neptune_tensorflow_keras(folder: str) -> Iterator[Any]:
    kind, logged = importlib.import_module("neptune_tensorflow_keras").NeptuneCallback, []
    run = importlib.import_module("neptune").init_run(mode="debug", capture_hardware_metrics=False)
    callback = kind(run=run, log_on_batch=True, log_model_summary=False)
    callback._log_metrics = lambda logs, category, trigger: logged.append((trigger, dict(logs)))
    yield callback
    run.stop()
    yield [[float(each["loss"])] for trigger, each in logged if trigger == "batch"]


def fit(package: Any, callbacks: list[Any]) -> None:
    """Train with a learning rate that changes at each step."""
    keras.utils.set_random_seed(1)
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.9)
    model = package.Sequential([keras.Input((3,)), keras.layers.Dense(2, "tanh"), keras.layers.Dense(1)])
    model.compile(package.optimizers.Adam(rate), "mse", jit_compile=False)
    model.fit(X, X[:, :1], batch_size=4, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=callbacks)


if __name__ == "__main__":
    tracker, folder = sys.argv[1:]
    os.chdir(folder)
    found = {}
    for package in (keras, unisono):
        tracked, calls = globals()[tracker](folder), Calls()
        fit(package, [next(tracked), calls])
        found[package.__name__] = next(tracked)
    print(json.dumps({**found, "calls": calls.number}), flush=True)
    os._exit(0)  # not waiting for the threads of trackers
