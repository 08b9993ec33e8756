"""ResNet-50 on TFRecord shards: each worker reads its own files, decodes JPEG and crops.

The program writes small shards of its own. Where several workers run it (`python -m unisono launch --workers 2 resnet50.py`,
or any cluster), each reads its files alone, and every image counts once. The recipe is that of Goyal et al. (2017): SGD
with momentum, a rate that grows with the batch, a warm-up, and decay of the weights of convolutions and matrices alone. Two
lines make it real; they are marked with "real:".
"""

from __future__ import annotations

import argparse
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import unisono

CLASSES = 4


def write_shards(folder: pathlib.Path, count: int, side: int, shards: int = 4) -> str:
    """Write images of stripes, whose direction is the class, with the keys of ImageNet's files. Return their pattern."""
    random = np.random.default_rng(1)
    folder.mkdir(parents=True, exist_ok=True)
    rows, columns = np.mgrid[:side, :side] / 4
    waves = [rows, columns, rows + columns, rows - columns]
    for shard in range(shards):
        with tf.io.TFRecordWriter(str(folder / f"train-{shard:05d}-of-{shards:05d}")) as file:
            for _ in range(count // shards):
                label = int(random.integers(CLASSES))
                wave = np.sin(waves[label] + random.uniform(0, 6))[..., None] + random.normal(
                    0, 0.3, (side, side, 3)
                )
                image = tf.io.encode_jpeg((127.5 + 60 * wave).clip(0, 255).astype("uint8")).numpy()
                features = {
                    "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
                    "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label + 1])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                file.write(example.SerializeToString())
    return str(folder / "train-*")


def make_input(pattern: str, classes: int, side: int, batch_size: int):
    """Return what `fit` calls on each worker: its files, its images, its share of every batch."""

    def decode(record):
        kinds = {"image/encoded": tf.string, "image/class/label": tf.int64}  # labels count from 1
        spec = {name: tf.io.FixedLenFeature([], kind) for name, kind in kinds.items()}
        example = tf.io.parse_single_example(record, spec)
        image = tf.io.decode_jpeg(example["image/encoded"], channels=3)
        image = tf.image.random_crop(tf.image.resize(image, (side + 4, side + 4)), (side, side, 3))
        return image / 127.5 - 1, tf.one_hot(example["image/class/label"] - 1, classes)

    def read(context):
        files = tf.data.Dataset.list_files(pattern, shuffle=False)
        files = files.shard(context.num_input_pipelines, context.input_pipeline_id)
        records = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)
        images = records.shuffle(10_000, seed=1).map(decode, num_parallel_calls=tf.data.AUTOTUNE)
        batches = images.batch(context.get_per_replica_batch_size(batch_size), drop_remainder=True)
        return batches.repeat().prefetch(tf.data.AUTOTUNE)

    return read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--side", type=int, default=32, help="pixels; 224 for ImageNet")
    parser.add_argument("--batch-size", type=int, default=64, help="over all replicas")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--steps", type=int, help="steps of an epoch; default: all images")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("demo/resnet50"))
    options = parser.parse_args()
    strategy = unisono.distribute.auto_strategy()  # before anything else of TensorFlow
    keras.utils.set_random_seed(1)
    # real: pattern = "gs://bucket/imagenet/train-*"
    pattern = write_shards(options.folder / "data", options.images, options.side)
    # real: count, classes = 1_281_167, 1000
    count, classes = options.images, CLASSES
    steps = options.steps or count // options.batch_size
    peak = unisono.optimizers.schedules.scaled(
        0.1, reference_batch_size=256, global_batch_size=options.batch_size
    )
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, steps * options.epochs, warmup_target=peak, warmup_steps=steps
    )
    with strategy.scope():
        model = keras.applications.ResNet50(
            weights=None,
            input_shape=(options.side, options.side, 3),
            classes=classes,
            classifier_activation=None,
        )
        model = unisono.adopt(model)
        optimizer = unisono.optimizers.SGD(rate, momentum=0.9, nesterov=True, weight_decay=5e-5)
        optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
        loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
        model.compile(optimizer, loss, metrics=["accuracy"])
    model.fit(
        make_input(pattern, classes, options.side, options.batch_size),
        epochs=options.epochs,
        steps_per_epoch=steps,
        callbacks=[unisono.callbacks.BackupAndRestore(options.folder / "backup")],
        verbose=2,
    )
    if unisono.distribute.is_chief():
        print(f"\n{model.count_params():,} weights, {model.optimizer.iterations.numpy()} updates")


if __name__ == "__main__":
    main()
