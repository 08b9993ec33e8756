"""Data of Hugging Face `datasets`, from Parquet files: read by index, never all in memory, resumed at once.

Needs `pip install datasets`. The program writes its own Parquet files, and `load_dataset` maps them into memory as Arrow
tables. `Samples` takes batches out of them by index. So `fit` can shuffle them, read ahead with threads, divide them over
replicas and workers, and resume at the right batch without reading those before it. Two lines make it real; they are marked
with "real:".
"""

from __future__ import annotations

import argparse
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import sklearn.datasets

import unisono

try:
    import datasets
except ImportError:
    raise SystemExit("this example needs Hugging Face datasets: pip install datasets") from None


class Samples(keras.utils.PyDataset):
    """Batches of the columns `image` and `label`."""

    def __init__(self, data: datasets.Dataset, batch_size: int, **workers: int) -> None:
        super().__init__(**workers)
        self.data, self.batch_size = data.with_format("numpy"), batch_size

    def __len__(self):
        return -(-len(self.data) // self.batch_size)

    def __getitem__(self, number):
        batch = self.data[number * self.batch_size : (number + 1) * self.batch_size]
        return batch["image"].astype("float32") / 255, batch["label"]


def write_parquet(folder: pathlib.Path, files: int = 4) -> list[str]:
    """Write the digits of scikit-learn to Parquet files, as a data set on the hub has them."""
    digits = sklearn.datasets.load_digits()
    pixels = (digits.data / 16 * 255).astype("uint8")
    whole = datasets.Dataset.from_dict({"image": pixels, "label": digits.target})
    folder.mkdir(parents=True, exist_ok=True)
    paths = [str(folder / f"train-{number:05d}-of-{files:05d}.parquet") for number in range(files)]
    for number, path in enumerate(paths):
        whole.shard(files, number).to_parquet(path)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--samples", type=int, help="default: all")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("demo/hugging_face"))
    options = parser.parse_args()
    keras.utils.set_random_seed(1)
    # real: name, how = "ylecun/mnist", {}
    name, how = "parquet", {"data_files": write_parquet(options.folder)}
    data = datasets.load_dataset(name, **how, split="train", cache_dir=str(options.folder / "cache"))
    if options.samples:
        data = data.select(range(options.samples))
    parts = data.train_test_split(test_size=0.25, seed=1)
    with unisono.distribute.auto_strategy().scope():
        # real: layers = [keras.Input((28, 28)), keras.layers.Flatten()]
        layers = [keras.Input((64,))]
        model = unisono.Sequential([*layers, keras.layers.Dense(128, "relu"), keras.layers.Dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(unisono.optimizers.Adam(2e-3), loss, metrics=["accuracy"])
    model.fit(
        Samples(parts["train"], 50, workers=2),
        epochs=options.epochs,
        validation_data=Samples(parts["test"], 50),
        callbacks=[unisono.callbacks.BackupAndRestore(options.folder / "backup")],
        verbose=2,
    )
    accuracy = model.evaluate(Samples(parts["test"], 50), verbose=0, return_dict=True)["accuracy"]
    print(f"\n{accuracy:.1%} of {len(parts['test'])} unseen digits are classified correctly")


if __name__ == "__main__":
    main()
