"""Keras' layers, losses and metrics on uneven shards: samples that are independent are never gathered, only reduced."""

from __future__ import annotations

import cProfile

import keras
import numpy as np
import pytest
from partition.keras_programs import LAYERS, LOSSES, METRICS, WEIGHTS, L, S, of_layers, of_loss, of_metric
from partition_in_parts import Parts

from unisono.trainer.partition.program import Copy

pytestmark = pytest.mark.usefixtures("float64")
FLOAT64, FLOAT32 = 1e-12, 1e-5
PARTS = ((3, 4), (6, 0, 1))
GATHERED = {"loss CTC": 5, "loss Circle": 2}
"""CTC fills its table of transitions, and a circle loss compares all samples."""
NEEDS_EXTENTS = (
    *("DepthwiseConv1D", "DepthwiseConv2D", "adaptive poolings", "LayerNormalization", "GroupNormalization"),
    *("unrolled GRU", "shapes of images", "Discretization", "TimeDistributed"),
    *("metric R2Score", "metric F1Score", "metric FBetaScore"),
)
"""Keras itself needs known extents."""
GATHERED_OF_UNKNOWN_EXTENTS = {
    "loss CTC": 4, "metric Recall": 4, "metric TruePositives": 3, "metric FalseNegatives": 3, "metric AUC": 4,
    "metric AUC with given thresholds": 5, "metric AUC of several labels": 4, "metric Precision": 4,
    "metric PrecisionAtRecall": 4, "metric SensitivityAtSpecificity": 4,
}  # fmt: skip
"""Metrics flatten two arrays, whose numbers of entries are not known to be the same."""
SINGLE = ("poolings of volumes", "loss CTC", "resized images", "shapes of images")


def _programs():
    for name, (build, x) in LAYERS.items():
        yield name, lambda build=build, x=x: of_layers(build, x), (x,)
    for kind, make, listed in (("loss", of_loss, LOSSES), ("metric", of_metric, METRICS)):
        for name, (cls, options, *data) in listed.items():
            build = lambda make=make, cls=cls, options=options: make(cls, options, "IoU" not in cls)  # noqa: E731
            yield f"{kind} {name}", build, (*data, WEIGHTS)


@pytest.mark.short(
    "metric BinaryIoU", "metric IoU", "metric MeanIoU", "metric OneHotMeanIoU", "metric OneHotIoU"
)
@pytest.mark.parametrize("name, make, batch", [pytest.param(*each, id=each[0]) for each in _programs()])
def test_keras_in_uneven_parts_matches_the_whole_and_gathers_no_samples(name, make, batch):
    keras.utils.set_random_seed(1)
    parts = Parts(make(), *batch)
    parts.check(PARTS, FLOAT32 if name in SINGLE else FLOAT64)
    assert parts.communicated[0] == GATHERED.get(name, 0)


@pytest.mark.long
@pytest.mark.parametrize(
    "name, make, batch",
    [pytest.param(*each, id=each[0]) for each in _programs() if each[0] not in NEEDS_EXTENTS],
)
def test_keras_on_batches_of_unknown_extents_matches_the_whole_and_gathers_no_samples(name, make, batch):
    keras.utils.set_random_seed(1)
    parts = Parts(make(), *batch, open_axes=True)
    parts.check(PARTS, FLOAT32 if name in SINGLE else FLOAT64)
    assert parts.communicated[0] == GATHERED_OF_UNKNOWN_EXTENTS.get(name, GATHERED.get(name, 0))


def test_pictures_behind_a_projection_keep_their_extents_and_gather_no_samples():
    """TensorFlow's trace does not know the extents after it, but its shape function does when it knows the input's."""

    def build(x):
        shift = keras.ops.convert_to_tensor([[1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0]])
        return L.LayerNormalization()(L.Conv2D(2, 3)(keras.ops.image.affine_transform(x, shift)))

    x = np.random.default_rng(0).normal(size=(7, 5, 6, 1))
    parts = Parts(of_layers(build, x), x).check(PARTS, FLOAT32)
    program = parts.program
    axes = [n for n in program.nodes if isinstance(n, Copy) and n.op.type == "BroadcastGradientArgs"]
    assert parts.communicated[0] == 0 and None not in map(program.find_fixed, axes)


def _work(blocks):
    """The function calls of labelling a transformer, and the values and nodes of its program."""

    def build(x):
        for _ in range(blocks):
            x = L.LayerNormalization()(x + L.MultiHeadAttention(2, 3)(x, x))
            x = x + L.Dense(3)(L.Dense(6, "gelu")(x))
        return x

    parts, profile = Parts(of_layers(build, S), S), cProfile.Profile()
    profile.runcall(parts.partition)
    calls = sum(entry.callcount for entry in profile.getstats())
    return calls, len(parts.program.values), len(parts.program.nodes)


@pytest.mark.long
def test_work_and_memory_of_labelling_are_linear_in_the_operations():
    for two, four, eight in zip(*map(_work, (2, 4, 8))):
        assert eight - four == pytest.approx(2 * (four - two), rel=0.05)
