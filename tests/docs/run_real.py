"""Runs an example with its real lines, `run_real.py EXAMPLE [ARGUMENT ...]`: small stand-ins for what needs a network."""

import os
import pathlib
import re
import runpy
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

random = np.random.default_rng(0)


def draw(*shape):
    return random.integers(0, 256, shape).astype("uint8")


def main():
    program = pathlib.Path(sys.argv[1])
    source = program.read_text(encoding="utf-8")
    # Each real line stands in a comment above the line that it replaces.
    source, count = re.subn(r"^( *)# real: (.*)\n.*\n", r"\1\2\n", source, flags=re.MULTILINE)
    assert count == 2

    keras.datasets.cifar10.load_data = lambda: ((draw(60, 32, 32, 3), None), None)
    keras.datasets.mnist.load_data = lambda: ((draw(60, 28, 28), None), None)

    if program.stem == "hugging_face":  # a folder of that name is read instead of the hub
        import datasets
        from PIL import Image

        features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(10)})
        columns = {
            "image": [Image.fromarray(draw(28, 28)) for _ in range(200)],
            "label": [n % 10 for n in range(200)],
        }
        pathlib.Path("ylecun/mnist").mkdir(parents=True)
        datasets.Dataset.from_dict(columns, features).to_parquet("ylecun/mnist/train-00000-of-00001.parquet")
    if program.stem == "grain_position":
        from array_record.python.array_record_module import ArrayRecordWriter

        writer = ArrayRecordWriter("train.array_record", "group_size:1")
        for record in runpy.run_path(str(program))["make_records"]():
            writer.write(record)
        writer.close()
        source = source.replace("num_workers=8", "num_workers=2")
    if program.stem == "large_embedding":
        ratings = [f"{random.integers(1, 162_542)},{random.integers(1, 209_172)},3.5,0" for _ in range(1000)]
        pathlib.Path("ratings.csv").write_text("\n".join(["userId,movieId,rating,timestamp", *ratings]))
    if program.stem == "resnet50":
        runpy.run_path(str(program))["write_shards"](pathlib.Path("imagenet"), 16, 32)
        source = source.replace("gs://bucket/", "")

    path = pathlib.Path(program.name)
    path.write_text(source, encoding="utf-8")
    sys.argv = [str(path), *sys.argv[2:]]
    runpy.run_path(str(path), run_name="__main__")


if __name__ == "__main__":  # processes of Grain import this file again
    main()
