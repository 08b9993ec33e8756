"""How what a replica's own rows gave is joined with what the rows of the other replicas gave.

Code of a user's own computes on a replica what it computes on one device that holds only this replica's rows. A number that
leaves it may be a mean over the rows or a sum over them, and the two are joined differently. Which it is, is found out from
real rows before the first step (`trainer/step/find_rules.py`), and is the same in every step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

MEAN = "a mean over the rows"
SUM = "a sum over the rows"  # or scaled with a constant: by the global batch, say
MEAN_PER_REPLICA = "a mean over the rows, divided by the number of replicas"
MEAN_TIMES_REPLICAS = "a mean over the rows, times the number of replicas"
SUM_TIMES_REPLICAS = "a sum over the rows, times the number of replicas"
OF_REPLICAS = frozenset((MEAN_PER_REPLICA, MEAN_TIMES_REPLICAS, SUM_TIMES_REPLICAS))
"""The rules of numbers that user code computes from `num_replicas_in_sync`, which is 1 on one device."""
ACROSS_ROWS = "a number that looks across rows"
ON_ONE = "all rows on one replica"  # beside the rule that comes nearest: no rule joins it

EACH_ROW = "something for each row"
SAME = "the same on every replica"  # what is computed from gathered rows, a table

LARGEST, SMALLEST, FIRST = "the largest", "the smallest", "the first replica's"
EQUAL = "the same on every replica"


class WriteRule(NamedTuple):
    """How the values that the replicas give a variable become one.

    Attributes:
        kind: MEAN (weighted with the rows), SUM, LARGEST, SMALLEST, FIRST: that of the first replica with rows, or EQUAL.
            EQUAL is for what no batch has shown yet: where all replicas with rows write one value, that is it; else numbers
            become the mean, and what is added to integers is summed.
        kept: with SUM, the part of the old value that stays, whatever the rows: 1 for a count, the decay of a moving
            sum. A value of the replicas is `kept * old + what its rows add`.
    """

    kind: str
    kept: float = 1.0


@dataclasses.dataclass(frozen=True)
class JoinRules:
    """The rules of one kind of step of one model; what is not named is a mean.

    Attributes:
        loss: of a `compute_loss` of the user's own; ACROSS_ROWS: it is called with the rows of all replicas.
        without_rows: which of its arguments' tensors have no rows (centers of classes beside predictions), by their number.
        gradients: of each call of an optimizer in a `train_step` of the user's own, in order; also SAME, after `tapes`.
        tapes: of the gradients that such a step takes from tapes, in order, where these are joined as they are taken; else
            empty.
        parts: of the numbers of which one is computed that no rule joins, in order, also SAME, LARGEST and SMALLEST: of the
            target of a gradient ("tape" and its number), a log ("log" and its name), what a metric is fed with ("fed" and
            its number), or a loss that a layer adds ("added", the layer's id and the number of the loss).
        logs: of the logs that a step returns, by name.
        fed: of what metrics are updated with, by its number in the step; also EACH_ROW and SAME. A number that is not named
            is a mean, anything else has rows.
        weighted: of the numbers that a `Mean` or `Sum` is given beside a weight, and of these weights, in the same count.
        added: of the losses that layers add, by the layer's id and the number of its loss.
        writes: by the variable's id.
        gathered_layers: ids of the layers that are given the rows of all replicas.
        on_one: whether the first replica computes each batch as a whole, and the others count for nothing: no rule joins
            what the rows of the replicas give.
    """

    loss: str = MEAN
    without_rows: Sequence[int] = ()
    gradients: Sequence[str] = ()
    tapes: Sequence[str] = ()
    parts: Mapping[tuple[Any, ...], Sequence[str]] = dataclasses.field(default_factory=dict)
    logs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fed: Mapping[int, str] = dataclasses.field(default_factory=dict)
    weighted: Mapping[int, str] = dataclasses.field(default_factory=dict)
    added: Mapping[tuple[int, int], str] = dataclasses.field(default_factory=dict)
    writes: Mapping[int, WriteRule] = dataclasses.field(default_factory=dict)
    gathered_layers: Collection[int] = ()
    on_one: bool = False


def numbered(rules: Sequence[str], number: int) -> str:
    """The rule of what comes `number`-th; a mean where nothing was found."""
    return rules[number] if number < len(rules) else MEAN


def declared(variable: Any) -> WriteRule | None:
    """What the `aggregation` of a Keras variable says; None where it says nothing."""
    kinds = {"mean": MEAN, "sum": SUM, "only_first_replica": FIRST}
    kind = kinds.get(getattr(variable, "aggregation", None) or "none")
    return None if kind is None else WriteRule(kind)
