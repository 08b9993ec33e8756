"""Input by Grain, with Grain's own checkpoint of its position: an interrupted run ends bitwise as an undisturbed one.

Needs Grain (`pip install grain`). `GrainBatches` feeds any pipeline of Grain to `fit`, and keeps the state of its iterator
for each batch. The callback `GrainPosition` puts that state into the backups. So a resumed run continues at the next batch,
without reading those before it. Two lines make it real; they are marked with "real:".
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import sklearn.datasets

import unisono

try:
    import grain
except ImportError:
    raise SystemExit("this example needs Grain: pip install grain") from None

BATCH = 51


class GrainBatches(keras.utils.PyDataset):
    """Batches of a pipeline of Grain, by number. A batch out of turn sets the iterator to the state kept for it."""

    def __init__(self, pipeline: grain.IterDataset, length: int) -> None:
        super().__init__()
        self.iterator, self.length, self.next = iter(pipeline), length, 0
        self.states = {0: self.iterator.get_state()}

    def __len__(self):
        return self.length

    def __getitem__(self, number):
        if number != self.next:
            self.iterator.set_state(self.states[number])
        batch = next(self.iterator)
        self.next = number + 1
        self.states[self.next] = self.iterator.get_state()
        return batch


class GrainPosition(keras.callbacks.Callback):
    """Keeps Grain's state in the backups of `BackupAndRestore`."""

    def __init__(self, batches: GrainBatches) -> None:
        super().__init__()
        self.batches = batches

    def get_state(self) -> dict[str, Any]:
        position = self.model.fit_state
        number = position.epoch * position.steps_per_epoch + position.step
        states = self.batches.states
        for old in [each for each in states if 0 < each < number]:
            del states[old]
        return {"number": number, "state": json.dumps(states[number])}

    def set_state(self, state: dict[str, Any]) -> None:
        self.batches.states[state["number"]] = json.loads(state["state"])


class StopAt(keras.callbacks.Callback):
    """Stands for a machine that is switched off after a number of steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.left = steps

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            raise InterruptedError("the machine is switched off")


def make_records() -> list[bytes]:
    """The digits of scikit-learn as the records of a file: the pixels of each, then its class."""
    digits = sklearn.datasets.load_digits()
    return [np.append(x, y).astype("float32").tobytes() for x, y in zip(digits.data / 16, digits.target)]


def parse_record(record: bytes, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    *pixels, label = np.frombuffer(record, "float32")
    return np.float32(pixels + rng.normal(0, 0.1, len(pixels))), np.int32(label)


def make_pipeline() -> grain.IterDataset:
    """Shuffled anew in each pass, with noise that Grain draws from its own seed."""
    # real: source = grain.sources.ArrayRecordDataSource("train.array_record")
    source = make_records()
    samples = grain.MapDataset.source(source).seed(1).shuffle().repeat().random_map(parse_record)
    batches = samples.to_iter_dataset().batch(BATCH, drop_remainder=True)
    # real: return batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=8))
    return batches


def train(steps: int, folder: str, *callbacks: keras.callbacks.Callback) -> unisono.Model:
    """Two epochs of `steps` steps, which continue from the newest backup in the folder."""
    keras.utils.set_random_seed(1)
    batches = GrainBatches(make_pipeline(), length=2 * steps)
    with unisono.distribute.auto_strategy().scope():
        model = unisono.Sequential(
            [keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(unisono.optimizers.Adam(2e-3), loss, metrics=["accuracy"])
    backup = unisono.callbacks.BackupAndRestore(folder, save_freq=max(1, steps // 3))
    model.fit(
        batches,
        shuffle=False,
        epochs=2,
        steps_per_epoch=steps,
        verbose=2,
        callbacks=[GrainPosition(batches), backup, *callbacks],
    )
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150, help="steps of each of the two epochs")
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        whole = train(steps, f"{folder}/whole")
        try:
            train(steps, f"{folder}/broken", StopAt(steps + steps // 2))
        except InterruptedError as error:
            print(
                f"\n{error} after {steps + steps // 2} of {2 * steps} steps; the same program starts again:"
            )
        resumed = train(steps, f"{folder}/broken")
    pairs = zip(whole.get_weights(), resumed.get_weights(), strict=True)
    equal = all(np.array_equal(one, other) for one, other in pairs)
    print(f"\nthe weights of both runs are {'bitwise identical' if equal else 'DIFFERENT'}")


if __name__ == "__main__":
    main()
