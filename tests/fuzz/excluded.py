"""What is known to be wrong and is being mended: these cases are not drawn, unless `--all` is given. Meant to be empty."""

from __future__ import annotations

from .case import Case
from .rules import STATES, Rules, losses, masked, metrics

# Steps whose loss is a mean over rows: the only ones that are joined rightly by now.
MEANS = (
    "keras",
    "compute_loss adds a mean",
    "compute_loss mean",
    "train_step compute_loss",
    "train_step mean",
)
NOT_GATHERED = {
    "Loss object",
    "Loss object sum",
    "PearsonCorrelation over rows",
    "CosineSimilarity over rows",
} | {
    "ConcordanceCorrelation over rows",
    "own Metric with a loss",
}

EXCLUDED: Rules = (
    ("the state of layers is joined as a mean", lambda c: bool(STATES & set(c.body))),
    ("the loss of a step of one's own is joined as a mean", lambda c: c.step not in MEANS),
    ("a Loss that overrides __call__ is joined as a mean", lambda c: any("__call__" in n for n in losses(c))),
    (
        "the loss CosineSimilarity over the rows, and the own losses without reduction, are joined as means",
        lambda c: (
            "CosineSimilarity over rows" in losses(c)
            or any(o.reduction == "none" and o.loss.startswith("Loss.call") for o in c.outputs)
        ),
    ),
    (
        "outputs without reduction beside others are joined as means",
        lambda c: len(c.outputs) > 1 and any(o.reduction == "none" for o in c.outputs),
    ),
    ("outputs of rank 1 are joined wrongly", lambda c: any(o.kind == "rank 1" for o in c.outputs)),
    ("metrics that see all rows of the batch are joined as sums", lambda c: bool(NOT_GATHERED & metrics(c))),
    (
        "accumulation weighs micro-batches of gathered losses by their rows",
        lambda c: (
            c.accumulation > 1
            and (masked(c) or any(o.reduction != "sum_over_batch_size" for o in c.outputs) or not _stock(c))
        ),
    ),
    (
        "a loss that is added only in training, or is zero on made-up rows, is joined as a mean",
        lambda c: bool({"adds a sum in training", "adds a sum of negative parts"} & set(c.body)),
    ),
    ("copies differ in the last bits, since each replica's graph is rewritten by itself", lambda c: (
        c.way != "eager" and (c.clip == "global_clipnorm" or bool(c.transformers))
    )),
)  # fmt: skip


def _stock(case: Case) -> bool:
    return not any(name.startswith(("rows", "scalar", "Loss.")) for name in losses(case))


def excluded(case: Case) -> str | None:
    """The reason why a case is left out for now; None where it is not."""
    return next((reason for reason, holds in EXCLUDED if holds(case)), None)
