"""Which cases are valid programs, and where plain Keras' result on one device differs from Unisono's.

Two tables of (reason, whether it applies to a case).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .case import (
    BINARY_LOSSES,
    BINARY_METRICS,
    CLASS_LOSSES,
    CLASS_METRICS,
    VALUE_LOSSES,
    VALUE_METRICS,
    Case,
)

Rules = Iterable[tuple[str, Callable[[Case], bool]]]

LOSSES = {"values": VALUE_LOSSES, "rank 1": VALUE_LOSSES, "classes": CLASS_LOSSES, "binary": BINARY_LOSSES}
METRICS = {
    "values": VALUE_METRICS,
    "rank 1": VALUE_METRICS,
    "classes": CLASS_METRICS,
    "binary": BINARY_METRICS,
}
# Losses with a selectable reduction.
REDUCED = {
    "MeanSquaredError", "CosineSimilarity over samples", "Loss.call", "Loss.call across",
    "SparseCategoricalCrossentropy", "BinaryCrossentropy", "BinaryFocalCrossentropy", "Dice",
}  # fmt: skip
ADDED = {
    "regularized", "activity regularizer", "adds a mean", "adds a sum", "adds a sum in training",
    "adds a sum of negative parts",
}  # fmt: skip
# Not possible with a vector of one value per sample: a Keras loss or metric that needs a second axis.
NEEDS_AXIS = {"cosine_similarity", "CosineSimilarity", "R2Score", "CosineSimilarity over samples"} | {
    "PearsonCorrelation over samples",
    "ConcordanceCorrelation over samples",
}


def per_step(case: Case) -> bool:
    """Whether outputs have an axis of time steps."""
    return case.pool == "none" and case.inputs != ("vector",)


def losses(case: Case) -> set[str]:
    """The names of the losses of all outputs."""
    return {output.loss for output in case.outputs}


def metrics(case: Case) -> set[str]:
    """The names of the metrics of all outputs."""
    return {name for output in case.outputs for name in output.metrics + output.weighted_metrics}


def masked(case: Case) -> bool:
    """Whether a layer creates a mask."""
    return case.masked and case.inputs != ("vector",)


def uneven(case: Case) -> bool:
    """Whether the last batch is smaller than the others."""
    return case.rows % case.batch != 0


def has_targets(case: Case) -> bool:
    """Whether there are targets."""
    return case.step != "train_step of x alone"


def custom_step(case: Case) -> bool:
    """Whether the step computes its own training loss."""
    return case.step != "keras"


# Not a valid program: it would be rejected, or be meaningless, also in Keras on one device.
IMPOSSIBLE: Rules = (
    (
        "jit_compile=True is rejected in a pipeline and if replicas share variables",
        lambda c: c.way == "xla" and c.strategy.startswith(("central", "pipeline", "sharded 2")),
    ),
    ("several outputs need a structure", lambda c: (c.outputs_as == "single") != (len(c.outputs) == 1)),
    (
        "a Sequential has one input and one output, and uses each layer once",
        lambda c: (
            c.form == "sequential" and (len(c.inputs) > 1 or len(c.outputs) > 1 or "shared" in c.body)
        ),
    ),
    ("a single input has no structure", lambda c: c.inputs_as != "list" and len(c.inputs) == 1),
    ("only sequences are masked", lambda c: c.masked and c.inputs == ("vector",)),
    ("only sequences are pooled", lambda c: c.pool != "average" and c.inputs == ("vector",)),
    (
        "inputs of different shapes must be pooled to be concatenated",
        lambda c: per_step(c) and len(c.inputs) > 1,
    ),
    ("the loss must fit the kind of output", lambda c: any(o.loss not in LOSSES[o.kind] for o in c.outputs)),
    (
        "the metric must fit the kind of output",
        lambda c: any(m not in METRICS[o.kind] for o in c.outputs for m in o.metrics + o.weighted_metrics),
    ),
    (
        "an output has each metric once",
        lambda c: any(
            len({*o.metrics, *o.weighted_metrics}) < len(o.metrics + o.weighted_metrics) for o in c.outputs
        ),
    ),
    (
        "only built-in Loss objects have a reduction",
        lambda c: any(
            o.reduction != "sum_over_batch_size" and (o.loss not in REDUCED or custom_step(c)) for o in c.outputs
        ),
    ),
    (
        "an output of rank 1 has no feature axis",
        lambda c: any(
            o.kind == "rank 1" and NEEDS_AXIS & {o.loss, *o.metrics, *o.weighted_metrics} for o in c.outputs
        ),
    ),
    ("an output of rank 1 has no steps", lambda c: per_step(c) and any(o.kind == "rank 1" for o in c.outputs)),
    (
        "Keras cannot add a scalar to an unreduced loss",
        lambda c: bool(ADDED & set(c.body)) and any(o.reduction == "none" for o in c.outputs),
    ),
    (
        "Keras cannot add an activity regularizer in half precision to a loss in float32",
        lambda c: "activity regularizer" in c.body and c.policy.startswith("mixed"),
    ),
    (
        "Keras cannot weight the samples of sequences",
        lambda c: per_step(c) and c.sample_weight in ("rows", "outputs"),
    ),
    (
        "Keras cannot weight a Loss object used as a metric",
        lambda c: any(name.startswith("Loss object") for o in c.outputs for name in o.weighted_metrics),
    ),
    (
        "a pipeline splits graphs of layers, not Python code, and no layer that assigns its weights",
        lambda c: (
            c.strategy.startswith("pipeline")
            and (
                c.form == "subclass"
                or c.step.startswith("train_step")
                or "spectral normalization" in c.body
            )
        ),
    ),
    (
        "batch normalization in a pipeline uses micro-batch statistics, and synchronized=True is rejected",
        lambda c: c.strategy.startswith("pipeline") and "synchronized batch normalization" in c.body,
    ),
    ("workers and pipelines cannot resume on other replicas", lambda c: (
        c.resume > 0 and not c.strategy.startswith(("mirrored", "central", "sharded"))
    )),
    (
        "R2Score, AUC and correlations take (samples, values), without steps",
        lambda c: per_step(c) and bool(metrics(c) & {"R2Score", *NEEDS_AXIS, *BINARY_METRICS}),
    ),
    (
        "step weights need steps; output weights need several outputs",
        lambda c: (
            (c.sample_weight == "steps" and not per_step(c))
            or (c.sample_weight == "outputs" and len(c.outputs) == 1)
        ),
    ),
    (
        "class weights need a single output, of classes, and no other weights",
        lambda c: (
            c.class_weight
            and ([o.kind for o in c.outputs] != ["classes"] or c.sample_weight != "none" or per_step(c))
        ),
    ),
    (
        "a loss or metric that is a scalar over samples cannot be weighted",
        lambda c: (
            (c.sample_weight != "none" or masked(c))
            and any(
                "across" in name or "over samples" in name or name in ("scalar mean", "scalar sum", "scalar", "Dice")
                for name in losses(c) | metrics(c)
            )
        ),
    ),
    (
        "custom steps need one output of values without weights or masks",
        lambda c: (
            custom_step(c)
            and (
                [o.kind for o in c.outputs] != ["values"]
                or c.sample_weight != "none"
                or masked(c)
                or c.outputs_as != "single"
            )
        ),
    ),
    ("a custom test_step needs a custom train_step", lambda c: (
        c.own_test_step and (not c.step.startswith("train_step") or not has_targets(c))
    )),
    ("Keras applies averages and a MultiOptimizer to all weights of a model, not to the share of an optimizer", lambda c: (
        c.step == "train_step two optimizers" and (c.ema or c.optimizer == "two optimizers")
    )),
    ("accumulation needs at least one full batch", lambda c: (
        c.accumulation > 1 and c.rows < c.batch
    )),
    ("Keras rejects generators that do not yield tuples", lambda c: not has_targets(c) and c.data == "generator"),
    ("Keras rejects class weights for generators", lambda c: c.class_weight and c.data == "generator"),
    ("Keras multiplies Muon's float32 schedule by float64 gradients, which TensorFlow rejects", lambda c: (
        c.optimizer == "Muon" and c.schedule and c.policy == "float64"
    )),
    ("the gradient of a key's bias in attention is only rounding error, which Muon scales to a full step", lambda c: (
        c.optimizer == "Muon" and c.pool == "attention"
    )),
    ("Keras cannot apply a sequence mask to the scalar of a Loss object used as a metric", lambda c: (
        masked(c) and per_step(c) and any(name.startswith("Loss object") for name in metrics(c))
    )),
    ("Keras cannot build an adapted layer inside a model's first call", lambda c: (
        c.form == "subclass" and "adapted normalization" in c.body
    )),
    ("the layer does not support sequences", lambda c: per_step(c) and "spectral normalization" in c.body),
)  # fmt: skip

# Keras' results on one device differ here, and ours are intended.
NOT_AS_KERAS: Rules = (
    ("Unisono shuffles samples in another order", lambda c: c.shuffle),
    ("only Unisono has gradient transformers", lambda c: bool(c.transformers)),
    (
        "Keras weights all micro-batches equally, regardless of their samples, weights and masks",
        lambda c: c.accumulation > 1,
    ),
    (
        "the logs of several outputs are means over batches in Keras, and over samples here",
        lambda c: len(c.outputs) > 1 and uneven(c),
    ),
    (
        "Keras updates and clips an embedding row once for each occurrence in the batch",
        lambda c: "tokens" in c.inputs and (c.optimizer not in ("SGD", "momentum") or c.clip != "none"),
    ),
    ("half precision rounds in another order", lambda c: c.policy.startswith("mixed")),
    (
        'a log "loss" of an own test step is 0 in Keras, which gives the metric of that name',
        lambda c: c.own_test_step and ("evaluate" in c.then or c.validation),
    ),
)


def impossible(case: Case) -> str | None:
    """The reason why a case is not a valid program; None if it is one."""
    return next((reason for reason, holds in IMPOSSIBLE if holds(case)), None)


def not_as_keras(case: Case) -> str | None:
    """The reason why Keras' single-device result differs; None if it does not."""
    return next((reason for reason, holds in NOT_AS_KERAS if holds(case)), None)


# Errors that reject a case before the first step, as (reason, part of the message): no result, but no wrong one.
REFUSED = (("a loss over all replicas cannot be compiled with XLA", "jit_compile=True cannot be used with"),)


def is_refused(error: Exception) -> bool:
    """Whether an error is one of the documented ones."""
    return any(text in str(error) for _, text in REFUSED)


def takes_long(case: Case) -> bool:
    """Whether a case starts processes."""
    return case.strategy.startswith("workers")
