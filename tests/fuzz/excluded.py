"""What is known to be wrong and is being mended: these cases are not drawn, unless `--all` is given. Meant to be empty."""

from __future__ import annotations

from .case import Case
from .rules import STATES, Rules, metrics

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
    ("metrics that see all rows of the batch are joined as sums", lambda c: bool(NOT_GATHERED & metrics(c))),
    (
        "how the state of layers is joined is not found on fewer than four rows",
        lambda c: bool(STATES & set(c.body)) and (min(c.rows, c.batch) < 4),
    ),
    (
        "the state of layers in a pipeline is that of its last micro-batch",
        lambda c: bool(STATES & set(c.body)) and c.strategy.startswith("pipeline"),
    ),
    (
        "what is accumulated of the gradients of a step of one's own is smaller by the number of replicas",
        lambda c: c.accumulation > 1 and c.step.startswith("train_step"),
    ),
    (
        "layers that assign while they compute in half precision fail",
        lambda c: bool({*STATES, "spectral normalization"} & set(c.body)) and c.policy.startswith("mixed"),
    ),
    (
        "pipelines fail to compile under XLA",
        lambda c: c.strategy.startswith("pipeline") and c.way in ("xla", "auto"),
    ),
)


def excluded(case: Case) -> str | None:
    """The reason why a case is left out for now; None where it is not."""
    return next((reason for reason, holds in EXCLUDED if holds(case)), None)
