"""The task on a GPU: model, size, data and precision. Imports no framework."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

MODELS = ("mlp", "resnet50", "gpt2", "bert")
PRECISIONS = ("float32", "tf32", "bfloat16", "float16")
TRAINERS = ("ours", "loop", "keras", "torch", "jax")


@dataclasses.dataclass(frozen=True)
class Size:
    """A model's size.

    Attributes:
        batch: samples of a step.
        inputs: shape of a sample: features, an image, or tokens.
        classes: number of classes, or size of the vocabulary.
        width: units of a layer.
        blocks: number of layers, or of blocks in each stage.
        heads: attention heads.
    """

    batch: int
    inputs: tuple[int, ...]
    classes: int
    width: int
    blocks: tuple[int, ...]
    heads: int = 0


FULL = {
    "mlp": Size(1024, (784,), 10, 2048, (4,)),
    "resnet50": Size(64, (224, 224, 3), 1000, 64, (3, 4, 6, 3)),
    "gpt2": Size(4, (1024,), 50257, 768, (12,), 12),
    "bert": Size(32, (128,), 30522, 768, (12,), 12),
}
TINY = {
    "mlp": Size(32, (32,), 10, 64, (2,)),
    "resnet50": Size(4, (32, 32, 3), 10, 8, (1, 1)),
    "gpt2": Size(2, (16,), 100, 32, (1,), 2),
    "bert": Size(2, (16,), 100, 32, (1,), 2),
}
STEPS = {"mlp": 200, "resnet50": 20, "gpt2": 12, "bert": 20}
"""Model -> steps of a measured round."""


@dataclasses.dataclass(frozen=True)
class Task:
    """One cell of the table, for any trainer."""

    model: str
    precision: str
    tiny: bool = False

    @property
    def size(self) -> Size:
        """The size of its model."""
        return (TINY if self.tiny else FULL)[self.model]

    @property
    def steps(self) -> int:
        """Steps of a measured round."""
        return 5 if self.tiny else STEPS[self.model]

    def arrays(self) -> tuple[Any, Any]:
        """Inputs and targets of two batches, on which every trainer trains repeatedly."""
        size, random = self.size, np.random.default_rng(0)
        samples = 2 * size.batch
        if self.model in ("gpt2", "bert"):
            words = random.integers(0, size.classes, (samples, size.inputs[0] + 1)).astype("int32")
            return (words[:, :-1], words[:, 1:]) if self.model == "gpt2" else (words[:, 1:], words[:, 1:])
        x = random.normal(size=(samples, *size.inputs)).astype("float32")
        return x, random.integers(0, size.classes, samples).astype("int32")
