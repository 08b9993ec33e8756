r"""How the numbers that user code hands back are joined: found out from real rows, without a trace in the state.

A function f of rows is computed on a few real rows X (as on one device), and on two parts A and B of them, of different
sizes (as on two replicas). With a, b and n rows:

===================  ==========================================================
a f(A) + b f(B)      equals n f(X): f is a mean
f(A) + f(B)          equals f(X): a sum, or scaled with a constant
2 (a f(A) + b f(B))  equals n f(X), and f uses the number of replicas: a mean over the rows, divided by that number
===================  ==========================================================

Anything else looks across rows. All of them are linear, so gradients are compared by two numbers that are linear in theirs.

Context: host.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...callbacks.trained_model import TrainedModel
from ...compat.layers import layers_of, own_state
from ...compat.replaced import replaced_functions
from ...distribute.join_rules import (
    ACROSS_ROWS,
    FIRST,
    LARGEST,
    MEAN,
    MEAN_PER_REPLICA,
    SMALLEST,
    SUM,
    JoinRules,
    WriteRule,
    declared,
)
from ..inputs.rows import concat_rows, row_count, slice_rows
from .observed_step import PARTS, ObservedStep, looked_at
from .step_loss import overrides_compute_loss

_MOST_ROWS = 48  # that are computed on
_TOLERANCE = {"float64": 1e-6, "float32": 1e-3}
_HALF_TOLERANCE = 3e-2

_log = logging.getLogger("unisono")


class RuleFinder:
    """Finds the `JoinRules` of the training or evaluation steps of a model.

    Args:
        model: built.
        training: whether of its training steps.
    """

    def __init__(self, model: TrainedModel, training: bool) -> None:
        self._model, self._training = model, training
        self._own_step = model._overrides_step("train_step" if training else "test_step")
        self._own_logs = model._has_own_logs(training)
        self._states = _states(model)
        self._whole: ObservedStep | None = None
        self._part: ObservedStep | None = None

    @property
    def needed(self) -> bool:
        """Whether there is code of the user's own in the step."""
        own_layers = any(_is_own(layer) for layer in layers_of(self._model))
        return self._own_logs or self._own_step or overrides_compute_loss(self._model) or own_layers

    def anything_to_join(self, spec: Any) -> bool:
        """Whether that code hands back a number that must be joined: the step is traced. `spec`: of a batch."""
        step_fn = looked_at(self._model, self._training)
        arguments = (self._model, step_fn, spec, self._states, self._own_logs)
        try:
            with replaced_functions():
                self._whole = ObservedStep(*arguments)
                if not (self._whole.numbers or self._whole.writes):
                    return False
                self._part = ObservedStep(*arguments, known=self._whole.exchanged)
        except Exception as error:
            _log.info("What user code returns is taken for means over the rows: %r", error)
            return False
        return True

    def find(self, batch: Any) -> JoinRules:
        """The rules, from the first rows of a batch. After `anything_to_join`."""
        assert self._whole is not None and self._part is not None
        rows = min(int(row_count(batch)), _MOST_ROWS)
        if rows < 2:
            return JoinRules(known=False)
        batch = slice_rows(batch, 0, rows)
        values = [np.asarray(keras.ops.convert_to_numpy(v.value)) for v in self._states]
        try:
            seen = self._seen(batch, rows, values)
        except tf.errors.OpError as error:
            _log.info("What user code returns is taken for means over the rows: %r", error)
            return JoinRules()
        return self._rules(seen, batch, rows, values)

    def _seen(self, batch: Any, rows: int, values: Sequence[np.ndarray]) -> _Seen:
        assert self._whole is not None and self._part is not None
        cut = max(1, rows // 3)
        one = self._whole(batch, 0, rows, rows, values)
        known = [tf.constant(value) for value in one["exchanged"]]
        whole = self._part(batch, 0, rows, rows, values, known)
        first = self._part(slice_rows(batch, 0, cut), 0, cut, rows, values, known)
        last = self._part(slice_rows(batch, cut, rows), cut, rows, rows, values, known)
        return _Seen(one, whole, first, last, cut / rows, self._tolerance)

    @property
    def _tolerance(self) -> float:
        policies = {layer.compute_dtype for layer in layers_of(self._model)} | {keras.config.floatx()}
        return max(_TOLERANCE.get(str(dtype), _HALF_TOLERANCE) for dtype in policies)

    def _rules(self, seen: _Seen, batch: Any, rows: int, values: Sequence[np.ndarray]) -> JoinRules:
        found = {key: seen.rule(key) for key in seen.one["notes"] if key[0] != "loss" or len(key) == 1}
        known = all(rule is not None for rule in found.values())
        gradients = {key[1]: rule for key, rule in found.items() if key[0] == "gradients"}
        if ACROSS_ROWS in gradients.values():
            nearest = self._nearest(batch, rows, values)
            for number in [n for n, rule in gradients.items() if rule == ACROSS_ROWS]:
                self._warn(f"The gradients of call {number} of an optimizer in `train_step`")
                gradients[number] = nearest["gradients", number]
        fed = {key[1]: rule for key, rule in found.items() if key[0] == "fed"}
        return JoinRules(
            loss=self._loss_rule(found.get(("loss",)), seen),
            gradients=_in_order(gradients),
            logs={key[1]: _or_mean(rule) for key, rule in found.items() if key[0] == "log"},
            fed=_in_order(fed),
            added={key[1:]: self._added_rule(rule) for key, rule in found.items() if key[0] == "added"},
            writes=self._write_rules(batch, rows, values, seen),
            known=known,
        )

    def _loss_rule(self, rule: str | None, seen: _Seen) -> str:
        """ACROSS_ROWS only where that is certain: a model may mix the rows itself (batch statistics), and the loss not."""
        if self._whole is not None and self._whole.entries:
            return ACROSS_ROWS
        if rule != ACROSS_ROWS:
            return rule or MEAN
        notes = seen.one["notes"]
        parts = [notes.get(("loss", name)) for name in ("whole", "first", "last")]
        if any(part is None for part in parts):
            self._warn("The value of `compute_loss`")
            return MEAN
        whole, first, last = parts
        return _rule(notes["loss",], whole, first, last, seen.share, seen.tolerance) or MEAN

    def _added_rule(self, rule: str | None) -> str:
        if rule == ACROSS_ROWS:
            self._warn("A loss that a layer adds with `add_loss`")
        return _or_mean(rule)

    def _nearest(self, batch: Any, rows: int, values: Sequence[np.ndarray]) -> dict[Any, str]:
        """Whether gradients grow with the rows: those of the same rows once and twice are compared."""
        assert self._whole is not None and self._part is not None
        result: list[Any] = []
        for times in (1, 2):
            repeated = concat_rows([batch] * times)
            one = self._whole(repeated, 0, rows * times, rows * times, values)
            known = [tf.constant(value) for value in one["exchanged"]]
            result += [one, self._part(repeated, 0, rows * times, rows * times, values, known)]
        one, once, _, twice = (each["notes"] for each in result)
        return {key: _degree(one[key], once[key], twice[key]) for key in one if key[0] == "gradients"}

    def _warn(self, what: str) -> None:
        """Says once that a number cannot be joined exactly, unless the model itself mixes rows or draws numbers."""
        assert self._whole is not None
        mixes = any(isinstance(layer, keras.layers.BatchNormalization) for layer in layers_of(self._model))
        if mixes or self._whole.random:
            return
        warnings.warn(
            f"{what} looks across the rows of a batch, and each replica has its own rows: the result differs from that of "
            "one device. Gather what is compared with `unisono.distribute.gather(values)`, divide by a total of the "
            "global batch with `unisono.distribute.global_mean`, or use gradients after "
            "`optimizer.aggregate_gradients(...)`.",
            stacklevel=2,
        )

    def _write_rules(
        self, batch: Any, rows: int, values: Sequence[np.ndarray], seen: _Seen
    ) -> dict[int, WriteRule]:
        """The rules of the states that the step writes, from their values now and others."""
        assert self._whole is not None
        places = {id(v): i for i, v in enumerate(self._states)}
        written = [(n, v, places[id(v)]) for n, v in enumerate(self._whole.writes) if id(v) in places]
        if not written:
            return {}
        others = [_another(value) for value in values]
        cases = [(values, seen)]
        try:
            cases.append((others, self._seen(batch, rows, others)))
        except tf.errors.OpError:
            _log.info("The state of layers was looked at with its present values only.")
        rules = {}
        for number, variable, place in written:
            each = [(old[place], *case.writes(number)) for old, case in cases]
            rule = _write_rule(each, seen.share, seen.tolerance)
            if rule is not None:
                rules[id(variable)] = rule
            elif declared(variable) is None:
                rules[id(variable)] = self._fallback(variable)
        return rules

    def _fallback(self, variable: keras.Variable) -> WriteRule:
        rule = WriteRule(MEAN if tf.as_dtype(variable.dtype).is_floating else FIRST)
        what = "the mean, weighted with the rows" if rule.kind == MEAN else "that of the first replica"
        _log.warning(
            "The value that a step writes to %r looks across the rows of a batch: of the values of the replicas %s is "
            'kept. Declare it with `add_weight(aggregation="mean" | "sum" | "only_first_replica")`.',
            variable.path,
            what,
        )
        return rule


class _Seen:
    """What was seen of one state: on all rows as one device, on all rows as one of two replicas, and on the two parts."""

    def __init__(self, one: Any, whole: Any, first: Any, last: Any, share: float, tolerance: float) -> None:
        self.one, self.whole, self.first, self.last = one, whole, first, last
        self.share, self.tolerance = share, tolerance

    def rule(self, key: Any) -> str | None:
        """The rule of a noted number; None: it is zero on all rows, so that it cannot be told."""
        each = [part["notes"].get(key) for part in (self.one, self.whole, self.first, self.last)]
        if any(value is None for value in each):
            return MEAN
        return _rule(*each, share=self.share, tolerance=self.tolerance)

    def writes(self, number: int) -> tuple[np.ndarray, ...]:
        """The values that were written to the `number`-th variable: on all rows, on each part."""
        return tuple(np.asarray(part["writes"][number]) for part in (self.one, self.first, self.last))


def _rule(one: Any, whole: Any, first: Any, last: Any, share: float, tolerance: float) -> str | None:
    each = [np.asarray(value, np.float64) for value in (one, whole, first, last)]
    scale = max(np.abs(value).max(initial=0.0) for value in each)
    if scale == 0 or not np.isfinite(scale):
        return None
    one, whole, first, last = each
    mean = share * first + (1 - share) * last

    def close(a: np.ndarray, b: np.ndarray) -> bool:
        return bool(np.abs(a - b).max() <= tolerance * scale)

    if close(mean, one):
        return MEAN
    if not close(whole, one) and close(PARTS * mean, one):
        return MEAN_PER_REPLICA
    if close(first + last, one) or close(first + last, whole):
        return SUM
    return ACROSS_ROWS


def _degree(one: np.ndarray, once: np.ndarray, twice: np.ndarray) -> str:
    """What is nearest for a number that looks across rows, from its values for rows once and twice."""
    size = float(np.dot(once, once)) or 1.0
    if float(np.dot(twice, once)) > 1.5 * size:
        return SUM
    return MEAN_PER_REPLICA if float(np.dot(once, one)) < 0.75 * (float(np.dot(one, one)) or 1.0) else MEAN


def _write_rule(cases: Sequence[Any], share: float, tolerance: float) -> WriteRule | None:
    """The rule that holds in each case, as (old value, value on all rows, on the first, on the last); None: none does."""
    cases = [[np.asarray(value, np.float64) for value in case] for case in cases]

    def holds(joined: Callable[..., np.ndarray]) -> bool:
        return all(_near(joined(*case), case[1], case, tolerance) for case in cases)

    if holds(lambda old, one, first, last: old) and holds(lambda old, one, first, last: first):
        return WriteRule(SUM)  # nothing was added
    if holds(lambda old, one, first, last: share * first + (1 - share) * last):
        return WriteRule(MEAN)
    old, one, first, last = cases[-1]
    rest = first + last - one
    found = float(np.vdot(rest, old) / np.vdot(old, old)) if np.any(old) else 1.0
    for kept in (
        next((round(found, n) for n in range(6) if abs(found - round(found, n)) < 2e-6), found),
        found,
    ):
        if holds(lambda old, one, first, last, kept=kept: first + last - kept * old):
            return WriteRule(SUM, kept)
    if holds(lambda old, one, first, last: np.maximum(first, last)):
        return WriteRule(LARGEST)
    if holds(lambda old, one, first, last: np.minimum(first, last)):
        return WriteRule(SMALLEST)
    return None


def _near(value: np.ndarray, wanted: np.ndarray, case: Sequence[np.ndarray], tolerance: float) -> bool:
    scale = max(float(np.abs(part).max(initial=0.0)) for part in case)
    return bool(np.abs(value - wanted).max(initial=0.0) <= tolerance * 1e-2 * scale)


def _another(value: np.ndarray) -> np.ndarray:
    """Another value that a state might have."""
    if value.dtype.kind == "f":
        drawn = np.random.default_rng(0).uniform(0.5, 1.5, value.shape)
        return (value * drawn + 0.1 * drawn).astype(value.dtype)
    return value if value.dtype.kind == "b" else value + np.ones_like(value)


def _states(model: TrainedModel) -> list[keras.Variable]:
    """The variables of the user's own layers that training does not update by gradients, random state left out."""
    found: dict[int, keras.Variable] = {}
    for layer in filter(_is_own, layers_of(model)):
        found.update((id(v), v) for v in own_state(layer) if tf.as_dtype(v.dtype) != tf.string)
    return list(found.values())


def _is_own(layer: Any) -> bool:
    return not type(layer).__module__.startswith(("keras.src.", "unisono."))


def _or_mean(rule: str | None) -> str:
    return MEAN if rule in (None, ACROSS_ROWS) else rule


def _in_order(rules: dict[int, str | None]) -> tuple[str, ...]:
    return tuple(_or_mean(rules.get(number)) for number in range(max(rules, default=-1) + 1))
