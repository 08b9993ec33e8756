"""What metrics are fed with in a step, and by which rules the replicas join it.

All that the updates of a step are given is counted, in their order, and the rules that were found for it
(`find_rules.py`) bear these numbers. What has no rows (a mean for each output, a confusion matrix) is joined as a number is,
entry by entry; what is computed from gathered rows is the same on every replica.
"""

from __future__ import annotations

import itertools
from typing import Any

import keras
import tensorflow as tf

from ...compat.training import Mean, Sum
from ...distribute.join_rules import EACH_ROW, SAME
from ...distribute.step_context import StepContext
from .metric_kinds import is_stock
from .number_parts import number_of_all

_COUNTED = "tensors that metrics were fed with"


def rules_of_fed(
    metric: Any, args: Any, kwargs: Any, step: StepContext, looked_at: bool = True
) -> dict[int, str]:
    """The rule of each tensor and variable among the arguments of an update, by its id; those that are known.

    Counts them, and notes them where the step is looked at. In loops of the user's own nothing is known. A metric of Keras
    that compares targets with outputs takes them for rows, however many there are: the hardest ones, say.
    """
    if step.shares:
        return {}
    kind, rules = _kind(metric, args, kwargs), dict[int, str]()
    only_rows = is_stock(metric) and type(metric) not in (Mean, Sum)
    known = step.rules.weighted if kind == "weighted" else step.rules.fed
    for leaf in keras.tree.flatten((args, kwargs)):
        if not isinstance(leaf, tf.Tensor | keras.Variable):
            continue
        number = step.count(_COUNTED)
        rule = known.get(number)
        if looked_at and step.observer is not None:
            value = tf.convert_to_tensor(leaf)
            if value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_bool:
                rule = step.observer.fed(kind, number, value, metric)
        if rule is not None and (rule == SAME or _is_number(leaf) or not only_rows):
            rules[id(leaf)] = rule
    return rules


def with_joined_parts(args: Any, kwargs: Any, step: StepContext) -> tuple[Any, Any]:
    """The arguments of an update; a number whose parts replicas join is that of the whole batch. Before `rules_of_fed`."""
    if step.shares or not (step.rules.parts or step.observer is not None):
        return args, kwargs
    numbers = itertools.count(step.notes.get(_COUNTED, 0))

    def number_or_rows(leaf: Any) -> Any:
        if not isinstance(leaf, tf.Tensor | keras.Variable):
            return leaf
        number = next(numbers)
        return number_of_all(("fed", number), leaf, step) if isinstance(leaf, tf.Tensor) else leaf

    args = keras.tree.map_structure(number_or_rows, args)
    return args, keras.tree.map_structure(number_or_rows, kwargs)


def has_no_rows(args: Any, kwargs: Any, rules: dict[int, str]) -> bool:
    """Whether an update is given tensors that are no numbers, and none of them has a row for each row of the batch."""
    tensors = [
        leaf for leaf in keras.tree.flatten((args, kwargs)) if tf.is_tensor(leaf) and leaf.shape.rank != 0
    ]
    found = {rules.get(id(leaf), EACH_ROW) for leaf in tensors}
    return bool(found) and EACH_ROW not in found


def _kind(metric: Any, args: Any, kwargs: Any) -> str:
    """Whether it is a number with a weight, which are joined together, or anything else."""
    given = [*args, *kwargs.values()]
    weighted = type(metric) in (Mean, Sum) and len(given) == 2 and given[1] is not None
    return "weighted" if weighted and all(_is_number(value) for value in given) else "fed"


def _is_number(value: Any) -> bool:
    if isinstance(value, tf.Tensor):
        return value.shape.rank == 0
    return not isinstance(value, list | tuple) and len(getattr(value, "shape", ())) == 0
