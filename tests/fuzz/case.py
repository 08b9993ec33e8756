"""A case: the plain specification of a training program.

Every field lists its options, the simplest first. `draw.py` draws an option, `shrink.py` moves towards the first one.
"""

from __future__ import annotations

import dataclasses
from typing import Any


def one_of(*options: Any, plain: float = 0.6) -> Any:
    """A field with one of `options`; `plain` is the probability of the first."""
    return dataclasses.field(default=options[0], metadata={"options": options, "plain": plain})


def some_of(*options: Any, most: int = 2, least: int = 0, plain: float = 0.5) -> Any:
    """A field with a tuple of `least` to `most` of `options`; `plain` is the probability of the fewest."""
    metadata = {"options": options, "plain": plain, "least": least, "most": most}
    return dataclasses.field(default=options[:least], metadata=metadata)


VALUE_LOSSES = (
    "mse",
    "mae",
    "huber",
    "log_cosh",
    "cosine_similarity",
    "MeanSquaredError",
    "CosineSimilarity over samples",
    "rows",
    "scalar mean",
    "scalar sum",
    "scalar across",
    "Loss.call",
    "Loss.call across",
    "Loss.__call__ mean",
    "Loss.__call__ sum",
    "Loss.__call__ across",
)
CLASS_LOSSES = ("SparseCategoricalCrossentropy", "samples of classes")
BINARY_LOSSES = ("binary_crossentropy", "BinaryCrossentropy", "BinaryFocalCrossentropy", "Dice")
VALUE_METRICS = (
    "mae",
    "RootMeanSquaredError",
    "R2Score",
    "CosineSimilarity",
    "CosineSimilarity over samples",
    "PearsonCorrelation over samples",
    "ConcordanceCorrelation over samples",
    "Loss object",
    "Loss object sum",
    "rows",
    "scalar",
    "own Metric",
    "own maximum",
    "own Metric with a loss",
)
CLASS_METRICS = ("accuracy", "SparseCategoricalCrossentropy", "SparseTopKCategoricalAccuracy")
BINARY_METRICS = ("accuracy", "AUC", "Precision", "Recall", "BinaryIoU")


@dataclasses.dataclass(frozen=True)
class Output:
    """One output, and the loss and metrics compiled for it."""

    kind: str = one_of("values", "rank 1", "classes", "binary", plain=0.4)
    loss: str = one_of(*VALUE_LOSSES, *CLASS_LOSSES, *BINARY_LOSSES, plain=0.1)
    reduction: str = one_of("sum_over_batch_size", "sum", "none", "mean_with_sample_weight", plain=0.4)
    loss_weight: float = one_of(1.0, 0.3)
    metrics: tuple[str, ...] = some_of(*VALUE_METRICS, *CLASS_METRICS, *BINARY_METRICS)
    weighted_metrics: tuple[str, ...] = some_of(*VALUE_METRICS, *CLASS_METRICS, *BINARY_METRICS, most=1)


@dataclasses.dataclass(frozen=True)
class Case:
    """A training program."""

    seed: int = 0  # for weights and data

    strategy: str = one_of(
        "mirrored 2",
        "mirrored 3",
        "mirrored 4",
        "central 2",
        "pipeline 2",
        "pipeline 4",
        "workers 2",
        "sharded 2",
        "sharded 3",
        plain=0.3,
    )
    # Interrupt the run, and resume it on this many replicas; 0: do not.
    resume: int = one_of(0, 1, 2, 3, plain=0.85)
    way: str = one_of("graph", "eager", "xla", "auto", plain=0.7)
    steps_per_execution: int | str = one_of(1, 2, "auto", plain=0.5)
    policy: str = one_of("float64", "float32", "mixed_bfloat16", "mixed_float16", plain=0.8)

    form: str = one_of("functional", "sequential", "subclass", plain=0.4)
    inputs: tuple[str, ...] = some_of("vector", "tokens", "series", least=1, most=2, plain=0.6)
    inputs_as: str = one_of("list", "dict")
    masked: bool = one_of(False, True, plain=0.4)
    pool: str = one_of("average", "recurrent", "none", "gated", "attention", "convolution", plain=0.3)
    body: tuple[str, ...] = some_of(
        "dense",
        "shared",
        "regularized",
        "activity regularizer",
        "layer normalization",
        "frozen batch normalization",
        "synchronized batch normalization",
        "group normalization",
        "adapted normalization",
        "frozen",
        "nested model",
        "spectral normalization",
        "adds a mean",
        "adds a sum",
        "adds a sum in training",
        "adds a sum of negative parts",
        "counts samples",
        "counts calls",
        "sums",
        "maximum",
        "moving average",
        "moving average of counts",
        "declared sum",
        "declared mean",
        "declared first",
        most=3,
        plain=0.4,
    )
    outputs: tuple[Output, ...] = dataclasses.field(
        default=(Output(),), metadata={"options": (Output,), "plain": 0.7, "least": 1, "most": 2}
    )
    outputs_as: str = one_of("single", "list", "dict", plain=0.6)

    step: str = one_of(
        "keras",
        "compute_loss adds a mean",
        "compute_loss mean",
        "compute_loss sum",
        "compute_loss across",
        "compute_loss by global batch",
        "train_step compute_loss",
        "train_step mean",
        "train_step sum",
        "train_step samples",
        "train_step by global batch",
        "train_step by replicas",
        "train_step average loss",
        "train_step Loss object",
        "train_step Loss object sum",
        "train_step Loss object none",
        "train_step gathered",
        "train_step clips",
        "train_step clips its own",
        "train_step masked",
        "train_step compares samples",
        "train_step two optimizers",
        "train_step tracks a mean",
        "train_step tracks a sum",
        "train_step of x alone",
        plain=0.65,
    )
    own_test_step: bool = one_of(False, True)

    optimizer: str = one_of(
        "SGD", "momentum", "Adam", "AdamW", "RMSprop", "Adagrad", "Nadam", "Adamax", "Adadelta", "Ftrl", "Lamb",
        "Adafactor", "ScheduleFreeAdamW", "Muon", "two optimizers",
        plain=0.4,
    )  # fmt: skip
    clip: str = one_of("none", "clipnorm", "clipvalue", "global_clipnorm", plain=0.7)
    schedule: bool = one_of(False, True, plain=0.8)
    ema: bool = one_of(False, True, plain=0.85)
    accumulation: int = one_of(1, 2, 3, plain=0.8)
    transformers: tuple[str, ...] = some_of("centralize", "ClipByGlobalNorm", "doubled", most=1, plain=0.85)

    aggregator: str = one_of("none", "PackedAggregation", plain=0.85)

    data: str = one_of(
        "arrays", "tensors", "dataset", "dataset of unknown length", "generator", "PyDataset", plain=0.5
    )
    rows: int = one_of(8, 7, 5, 3, 1, plain=0.3)
    batch: int = one_of(4, 3, 2, 8, plain=0.4)
    epochs: int = one_of(1, 2, plain=0.5)
    shuffle: bool = one_of(False, True, plain=0.9)
    sample_weight: str = one_of("none", "rows", "outputs", "steps", plain=0.6)
    class_weight: bool = one_of(False, True, plain=0.8)
    validation: bool = one_of(False, True, plain=0.8)
    then: tuple[str, ...] = some_of("evaluate", "predict", plain=0.3)

    # Layers created under `keras.RematScope`.
    remat: bool = one_of(False, True, plain=0.85)


def written(value: Any) -> str:
    """A case as a Python expression, without fields that have their first option; the inverse of `read`."""
    if isinstance(value, tuple):
        return "(" + "".join(f"{written(item)}, " for item in value) + ")"
    if not dataclasses.is_dataclass(value):
        return repr(value)
    given = [
        f"{field.name}={written(getattr(value, field.name))}"
        for field in dataclasses.fields(value)
        if getattr(value, field.name) != field.default
    ]
    return f"{type(value).__name__}({', '.join(given)})"


def read(text: str) -> Case:
    """Parses a case from the output of `written`."""
    return eval(text, {"Case": Case, "Output": Output})
