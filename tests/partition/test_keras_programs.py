"""Keras' layers, losses and metrics on uneven shards: samples that are independent are never gathered, only reduced."""

from __future__ import annotations

import keras
import pytest
from partition.keras_programs import LAYERS, LOSSES, METRICS, WEIGHTS, of_layers, of_loss, of_metric
from partition_in_parts import Parts

pytestmark = pytest.mark.usefixtures("float64")
FLOAT64, FLOAT32 = 1e-12, 1e-5
PARTS = ((3, 4), (6, 0, 1))
GATHERED = {"loss CTC": 5, "loss Circle": 2}
"""CTC fills its table of transitions, and a circle loss compares all samples."""
SINGLE = ("poolings of volumes", "loss CTC", "resized images", "shapes of images")


def _programs():
    for name, (build, x) in LAYERS.items():
        yield name, lambda build=build, x=x: of_layers(build, x), (x,)
    for kind, make, listed in (("loss", of_loss, LOSSES), ("metric", of_metric, METRICS)):
        for name, (cls, options, *data) in listed.items():
            build = lambda make=make, cls=cls, options=options: make(cls, options, "IoU" not in cls)  # noqa: E731
            yield f"{kind} {name}", build, (*data, WEIGHTS)


@pytest.mark.short(
    "MultiHeadAttention",
    "LayerNormalization",
    "Conv?D",
    "shapes",
    "loss * of logits",
    "metric *IoU",
    "loss Dice",
    "*BatchNormalization",
)
@pytest.mark.parametrize("name, make, batch", [pytest.param(*each, id=each[0]) for each in _programs()])
def test_keras_in_uneven_parts_matches_the_whole_and_gathers_no_samples(name, make, batch):
    keras.utils.set_random_seed(1)
    parts = Parts(make(), *batch)
    parts.check(PARTS, FLOAT32 if name in SINGLE else FLOAT64)
    assert parts.communicated[0] == GATHERED.get(name, 0)
