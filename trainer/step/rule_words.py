"""What is said of numbers of user code that no rule joins: what they do, and how all replicas could share the work."""

from __future__ import annotations

from typing import NamedTuple

NOT_LOOKED_AT = "The code of your own in this step could not be looked at, so %s: %s"
SO_MEANS = "what it returns is taken for means over the rows"
SO_ON_ONE = (
    "the first replica computes each batch as a whole, which gives the numbers of one device at its speed"
)

ON_ONE_REPLICA = (
    "So the first replica computes each batch as a whole: the numbers are those of one device, and so are speed and memory. "
    "For all replicas to share the work, "
)
DIFFERS = "Each replica has its own rows, so the result differs from that of one device: "


class Why(NamedTuple):
    """Why no rule joins a number.

    Attributes:
        fact: what the number does; a sentence that begins after its name.
        cure: what makes it one that is joined; begins in the middle of a sentence.
    """

    fact: str
    cure: str


NO_MEAN = Why(
    "are neither means over the rows of a batch nor sums over them. ",
    "compute them from rows of all replicas (`unisono.distribute.gather`), from the result of a metric, or from gradients "
    "after `optimizer.aggregate_gradients(...)`.",
)
LOOKS_ACROSS = Why(
    "looks across the rows of a batch. ",
    "gather what is compared with `unisono.distribute.gather(values)`, divide by a total of the global batch with "
    "`unisono.distribute.global_mean`, or use gradients after `optimizer.aggregate_gradients(...)`.",
)
ADDS_A_CONSTANT = Why(
    "adds to a sum over the rows what does not depend on them, such as a regularizer, and each replica would add it. ",
    "divide that part by the number of replicas, as `tf.nn.scale_regularization_loss` does, or make the rest a mean over "
    "the rows.",
)
OTHER_ORDER = Why(
    "has other rows than the batch, in another order than that of the replicas (two views of each row, one view after the "
    "other, or valid tokens alone). ",
    "give its entries an axis of their own, `[rows, entries, ...]`, or make outputs of them.",
)
SHARED_STATISTICS = Why(
    "flow back through a synchronized BatchNormalization, and some are means over the rows and others sums. ",
    "make all of them the one or the other.",
)
MIXES_ROWS = Why(
    "depends on the other rows of the batch, as in `BatchNormalization`. ",
    "compute what depends on other rows in a layer of your own, from `unisono.distribute.gather(x)`, or use a synchronized "
    "BatchNormalization.",
)
NO_STATE = Why(
    "looks across the rows of a batch. ",
    'declare it with `add_weight(aggregation="mean" | "sum" | "only_first_replica")`, or compute it from gathered rows '
    "(`unisono.distribute.gather`).",
)

GATHERED = (
    "What some layers make of a row depends on the other rows of the batch, as in `BatchNormalization`. So each replica "
    "gives them the rows of all replicas: the numbers are those of one device, and so is the work of these layers: "
)
GATHERED_CURE = (
    "To share it, compute what depends on other rows from `unisono.distribute.gather(x)`, or use a synchronized "
    "BatchNormalization."
)
STATISTICS = (
    "Some layers compute with statistics of the rows that they are given, as `BatchNormalization` does. Each replica has "
    "its own rows, so the result differs from that of one device: "
)
OF_ALL_ROWS = (
    "For the numbers of one device compute them from `unisono.distribute.gather(x)`, the rows of all replicas, or use a "
    "synchronized BatchNormalization."
)

WARNED = {
    "gradients": "The gradient in call {} of an optimizer in `train_step`",
    "added": "A loss that a layer adds with `add_loss`",
}
NAMES = {
    "loss": "the value of `compute_loss`",
    "gradients": "the gradient in call {} of an optimizer",
    "added": "a loss of `add_loss`",
    "log": "the log {}",
    "fed": "number {} that a metric is fed with",
    "earlier": "a number of which another one is computed",
}
"""Of the numbers of a step, by the kind of their keys."""
