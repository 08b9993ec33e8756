r"""How the numbers that user code hands back are joined: found out from real rows, without a trace in the state.

What the step hands back on a few real rows is compared with what it hands back on parts of them (`compared_parts.py`).

Context: host.
"""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...callbacks.trained_model import TrainedModel
from ...compat.layers import holds_own_code, layers_of
from ...compat.replaced import replaced_functions
from ...distribute.join_rules import (
    ACROSS_ROWS,
    FIRST,
    MEAN,
    OF_REPLICAS,
    ON_ONE,
    SUM,
    JoinRules,
    WriteRule,
    declared,
)
from ...distribute.sharding.value import read_together
from ..inputs.row_units import slice_units, unit_count
from ..inputs.rows import concat_rows
from . import rule_words as words
from .compared_parts import Seen, rule_of
from .earlier_joins import Case
from .earlier_rules import EarlierRules
from .looks import Looks
from .observed_step import ObservedStep, looked_at
from .own_states import losses_hold_state, other_states, schedules, states_of_layers
from .rule_answers import (
    ALL_ROWS,
    EARLIER,
    GATHERED,
    JOINED,
    NOT_GATHERED,
    NUMBERS,
    Answers,
    Key,
    Names,
    is_on_one,
    join_rules,
)
from .shown_batch import ShownBatch
from .step_loss import overrides_compute_loss

_MOST_ROWS = 48  # that are computed on
_FEW_ROWS = 6  # to see whether layers mix them
_PARTS = ("whole", "first", "last")
_TOLERANCE = {"float64": 1e-6, "float32": 1e-3}
_HALF_TOLERANCE = 3e-2

_log = logging.getLogger("unisono")


class RuleFinder:
    """Finds the `JoinRules` of the training, evaluation or prediction steps of a model.

    Args:
        model: built.
        name: of the step: "train_step", "test_step" or "predict_step".
        gathers: whether layers may be given the rows of all replicas.

    Attributes:
        answers: what was found so far.
    """

    def __init__(self, model: TrainedModel, name: str, gathers: bool = True) -> None:
        self._model, self._name = model, name
        self._own_step = model._overrides_step(name)
        self._own_logs = name != "predict_step" and model._has_own_logs(name == "train_step")
        self._states = states_of_layers(model)
        self._earlier: EarlierRules | None = None
        self.answers = Answers()
        self._names = Names()
        self._may_be_whole = model._pipeline is None  # whose stages hold parts of each batch
        # Where no graph tells which tensors have rows, or XLA was asked to compile the layers, these are given their own.
        self._gathers = gathers and self._may_be_whole and not (model.run_eagerly or model.jit_compile)
        self._asks_numbers = True
        self._gathered: list[int] = []  # the layers that are in the traces so far
        self._statistics_are_said = False
        self._nearest_taken: set[Key] = set()  # of the numbers that no rule joins

    @property
    def _whole(self) -> ObservedStep:
        assert self._earlier is not None
        return self._earlier.looks.whole

    @property
    def needed(self) -> bool:
        """Whether there is code of the user's own in the step."""
        if self._own_step or any(map(holds_own_code, layers_of(self._model))):
            return True
        if self._name == "predict_step":
            return False
        return self._own_logs or overrides_compute_loss(self._model) or losses_hold_state(self._model)

    def anything_to_join(self, spec: Any) -> bool:
        """Whether that code hands back a number that must be joined: the step is traced. `spec`: of a batch."""
        self._make = functools.partial(
            ObservedStep, self._model, looked_at(self._model, self._name), spec, self._states, self._own_logs
        )
        looks = None
        try:
            with replaced_functions(), read_together(self._model.variables):
                first = self._make()
                others = other_states(self._model, first.writes, self._states)
                numbers = [noted for noted in first.noted if noted[0] != "rows"]
                if numbers:
                    others += schedules(self._model, first.reads, [*self._states, *others])
                if others:
                    self._states += others
                self._asks_numbers = bool(numbers or first.writes)
                if self._asks_numbers or (self._may_be_whole and (first.direct_statistics or first.may_mix)):
                    # Where there are others, again: with their values given.
                    looks = Looks(self._make, self._tolerance, first=None if others else first)
        except Exception as error:
            self._could_not_look(error)
            return self._on_one_unseen
        if looks is None:
            self._say_statistics(first)
            return False
        layers = [id(layer) for layer in layers_of(self._model)]
        self._names = Names(looks.whole.noted, looks.whole.writes, layers, self._states)
        self.answers = Answers(self._names.noted, looks.whole.without_rows)
        self._look_with(self._make, looks)
        self.answers[GATHERED] = self._to_gather([layer for _, layer in first.direct_statistics])
        return True

    def _look_with(self, make: Callable[..., ObservedStep], looks: Looks) -> None:
        self._earlier = EarlierRules(self._model, make, self._tolerance, self._names, self.answers, looks)

    def _to_gather(self, layers: Iterable[Any]) -> list[int]:
        """The numbers of layers that mix rows; NOT_GATHERED where they cannot be given those of all, or are the model."""
        found = {*map(id, layers)}
        numbers = [number for number, each in enumerate(layers_of(self._model)) if id(each) in found]
        if not (numbers and self._may_be_whole):
            return []
        return [NOT_GATHERED] if 0 in numbers or not self._gathers else numbers

    def _gather_as_found(self) -> None:
        """Looks anew, where other layers are to be given the rows of all replicas than in the traces so far."""
        wanted = self.answers.gathered
        if wanted == self._gathered:
            return
        layers = frozenset(self._names.layers[number] for number in wanted)
        make = functools.partial(self._make, gathered_layers=layers)
        try:
            looks = Looks(make, self._tolerance)
        except Exception as error:
            if not wanted:
                raise
            _log.info("Layers that mix rows could not be given those of all replicas: %r", error)
            self.answers[GATHERED] = [NOT_GATHERED]
            self._gather_as_found()
            return
        self._gathered = wanted
        self._look_with(make, looks)

    def _shown(self, case: Case) -> ShownBatch:
        """What a batch shows when all is joined that is joined before the step is done."""
        self._gather_as_found()
        assert self._earlier is not None
        self._earlier.join_as_found()
        shown = self._earlier.join(ShownBatch(self._earlier.looks, case))
        mixing = self._first_that_mixes(shown.seen)
        if mixing is None:
            return shown
        self.answers.forget("loss", *NUMBERS, "write", *EARLIER)
        # A layer that is given all rows should not be among them; others of its class will be.
        alike = [layer for layer in self._whole.row_layers if type(layer) is type(mixing)]
        found, before = {*self._to_gather(alike)}, {*self.answers.gathered}
        helps = not (found <= before or NOT_GATHERED in found)
        self.answers[GATHERED] = sorted(found | before) if helps else [NOT_GATHERED]
        return self._shown(case)

    @property
    def _cannot_gather(self) -> bool:
        """Whether layers mix rows, and are not given those of all replicas."""
        return NOT_GATHERED in (self.answers[GATHERED] or ())

    def _first_that_mixes(self, seen: Seen) -> Any:
        """The first layer with code of the user's whose outputs are not those of one device; None where there is none."""
        if not self._may_be_whole or self._cannot_gather or self._whole.random:
            return None
        across = (
            layer
            for place, layer in enumerate(self._whole.row_layers)
            if seen.rule(("rows", place)) not in (SUM, None)
        )
        return next(across, None)

    def _say_statistics(self, trace: ObservedStep) -> None:
        """Names the layers that compute with statistics of rows, once: of all rows, or of a replica's."""
        said, self._statistics_are_said = self._statistics_are_said, True
        if said or self._name != "train_step":
            return
        every = layers_of(self._model)
        gathered = [every[number].name for number in self.answers.gathered]
        if gathered:
            warnings.warn(f"{words.GATHERED}{', '.join(gathered)}. {words.GATHERED_CURE}", stacklevel=2)
        if trace.statistics and not self.answers.on_one:
            shown = dict.fromkeys(name.rpartition("/")[0] or name for name, _ in trace.statistics)
            warnings.warn(f"{words.STATISTICS}{', '.join(shown)}. {words.OF_ALL_ROWS}", stacklevel=2)

    def _could_not_look(self, error: Exception) -> None:
        """Takes what has no rule yet for means; in a step of the user's own all rows are computed on one replica."""
        on_one = self._on_one_unseen or self._cannot_gather
        if on_one:
            self.answers[ALL_ROWS] = [ON_ONE, MEAN]
        _log.warning(
            words.NOT_LOOKED_AT,
            words.SO_ON_ONE if on_one else words.SO_MEANS,
            str(error).partition("\n")[0] or repr(error),
        )
        self.answers.take_unknown_for_means()

    @property
    def _on_one_unseen(self) -> bool:
        own = self._own_step or overrides_compute_loss(self._model)
        return own and self._may_be_whole and self._name != "predict_step"

    def look(self, batch: Any) -> None:
        """Looks at the first rows of a batch. After `anything_to_join`."""
        if self._earlier is None:
            return
        units = int(unit_count(batch))
        if units < 1:
            return
        error = self._look_at_some(batch, units)
        may_mix = self._whole.may_mix if self._may_be_whole and not self.answers[GATHERED] else ()
        if error is not None and may_mix:  # a layer may need a number of rows that a part of them has not
            self.answers[GATHERED] = self._to_gather(may_mix)
            error = self._look_at_some(batch, units)
            if error is not None:
                self.answers[GATHERED] = [NOT_GATHERED]
        if error is not None:
            self._could_not_look(error)

    def _look_at_some(self, batch: Any, units: int) -> tf.errors.OpError | None:
        """Looks at the first rows, at more where the code of the step refuses so few; returns its last error."""
        most = [_MOST_ROWS, units] if self._asks_numbers else [_FEW_ROWS, _MOST_ROWS, units]
        values = [np.asarray(tf.convert_to_tensor(v.value).numpy()) for v in self._states]
        refused = None
        for rows in dict.fromkeys(min(units, each) for each in most):
            some = slice_units(batch, 0, rows, units)
            # One row has no parts.
            case = (concat_rows([some] * 2), 2, values) if rows == 1 else (some, rows, values)
            try:
                shown = self._shown(case)
                self._doubt(shown.seen)
                self._note(shown)
                self._say_statistics(self._whole)
                return None
            except tf.errors.OpError as error:
                refused = error
        return refused

    def rules(self) -> JoinRules:
        """The rules as far as they are known; the others are means, and what is written is EQUAL."""
        return join_rules(self.answers, self._names)

    @property
    def _tolerance(self) -> float:
        policies = {layer.compute_dtype for layer in layers_of(self._model)} | {keras.config.floatx()}
        return max(_TOLERANCE.get(str(dtype), _HALF_TOLERANCE) for dtype in policies)

    def _doubt(self, seen: Seen) -> None:
        """Forgets the rules that earlier batches have shown of numbers that no rule joins in this one."""
        for key, rule in self.answers.of_kind(*JOINED).items():
            doubtful = rule in (MEAN, SUM, *OF_REPLICAS) and key not in self._nearest_taken
            if doubtful and seen.rule(self._names.noted[key]) == ACROSS_ROWS:
                self.answers[key] = None

    def _note(self, shown: ShownBatch) -> None:
        """Answers what a batch shows."""
        no_means: list[Key] = []
        of_losses = False
        self._note_writes(shown)
        for key in self.answers:
            if self.answers[key] is not None or key in (EARLIER, GATHERED) or key[0] == "write":
                continue
            if key == ALL_ROWS:
                self.answers[key] = self._all_rows(shown.seen)
                continue
            if key[0] == "loss":
                self.answers[key] = self._rule_of_loss(shown)
                continue
            self.answers[key], why = self._rule_of_number(key, shown)
            if why is not None and key[0] in words.WARNED:
                of_losses = True
                what = words.WARNED[key[0]].format(*key[1:])
                self.answers[key] = self._not_joined(what, self.answers[key], why)
            elif why is not None and key[0] in ("log", "fed"):
                no_means.append(key)
        if no_means and not of_losses:  # whose cure is theirs
            self._say_no_means(no_means)

    def _rule_of_number(self, key: Key, shown: ShownBatch) -> tuple[str | None, words.Why | None]:
        """The rule of what the step hands back; where none joins it the nearest one, and why."""
        noted, seen = self._names.noted[key], shown.seen
        known = seen.rule_of_fed(key[1]) if key[0] in ("fed", "weighted") else None
        if key[0] == "log" and seen.is_same_log(key[1]):  # the result of a metric, say, which may be zero
            known = MEAN if seen.rule(noted) not in OF_REPLICAS else None
        rule = known or seen.rule(noted)
        if rule is None:
            return None, None
        if key[0] in JOINED and not known and rule != ACROSS_ROWS and shown.looks_across_if_thin(noted):
            rule = ACROSS_ROWS
        if rule != ACROSS_ROWS:
            differs = key[0] in words.WARNED and (self._is_bent(key) or shown.looks_across_later(noted))
            return rule, words.LOOKS_ACROSS if differs else None
        self._nearest_taken.add(key)
        rule, constant = shown.nearest[noted]
        adds = constant is not None and seen.is_left_over(noted, constant)
        return rule, words.ADDS_A_CONSTANT if adds else words.LOOKS_ACROSS

    def _is_bent(self, key: Key) -> bool:
        """Whether another rule may hold for a gradient or an added loss where rows are others."""
        of_tape = key[0] == "gradients" and any(each[0] == "tape" for each in self._whole.bent)
        return of_tape or self._names.noted[key] in self._whole.bent

    def _say_no_means(self, keys: list[Key]) -> None:
        """Says which logs, and what metrics are fed with, no rule joins."""
        names = dict.fromkeys(map(self._name_of_number, keys))
        what = f"Some numbers of a step ({', '.join(names)})"
        if self._name == "test_step":  # it is there for its numbers alone
            self.answers[keys[0]] = self._not_joined(what, self.answers[keys[0]], words.NO_MEAN)
        else:
            self._warn(f"{what} {words.NO_MEAN.fact}{words.DIFFERS}{words.NO_MEAN.cure}")

    def _name_of_number(self, key: Key) -> str:
        if key[0] == "log":
            return f"the log {key[1].strip('/')!r}"
        return f"what the metric {self._whole.fed_to[key[1]]!r} is updated with"

    def _all_rows(self, seen: Seen) -> Any:
        """ON_ONE, where each number by itself may be joined and all of them are not."""
        rule: Any = None
        if seen.looks_across(noted for noted in self._whole.noted if noted[0] == "order"):
            what = "An output that a loss of your own compares by rows"
            rule = self._not_joined(what, MEAN, words.OTHER_ORDER)
        elif self._losses_share_statistics(seen):
            rule = self._not_joined("The gradients of a step", MEAN, words.SHARED_STATISTICS)
        if self._cannot_gather and not (is_on_one(rule) or self.answers.on_one):  # whatever is drawn in it
            what = "What the model makes of a row"
            warnings.warn(
                f"{what} {words.MIXES_ROWS.fact}{words.ON_ONE_REPLICA}{words.MIXES_ROWS.cure}", stacklevel=2
            )
            return [ON_ONE, MEAN]
        return rule if is_on_one(rule) else None

    def _losses_share_statistics(self, seen: Seen) -> bool:
        """Whether gradients that are joined in different ways flow back through one synchronized normalization."""
        rules = {seen.rule(noted) or MEAN for noted in self._names.noted.values() if noted[0] == "gradients"}
        found = (
            layer for layer in layers_of(self._model) if isinstance(layer, keras.layers.BatchNormalization)
        )
        return len(rules) > 1 and any(layer.synchronized for layer in found)

    def _rule_of_loss(self, shown: ShownBatch) -> Any:
        """The rule of the value of `compute_loss`: ACROSS_ROWS also where another one may hold later."""
        rule = self._loss_seen(shown.seen)
        if rule is None or rule == ACROSS_ROWS or is_on_one(rule):
            return rule
        if ("loss",) in self._whole.bent:
            return ACROSS_ROWS
        told = [each for each in shown.later if all(("loss", part) in each.one["notes"] for part in _PARTS)]
        return ACROSS_ROWS if any(self._loss_seen(each) not in (None, rule) for each in told) else rule

    def _loss_seen(self, seen: Seen) -> Any:
        """ACROSS_ROWS only where that is certain: a model may mix the rows itself (batch statistics), and the loss not."""
        rule = seen.rule(("loss",))
        if self._whole.entries:
            return ACROSS_ROWS
        if rule != ACROSS_ROWS:
            return rule
        notes = seen.one["notes"]
        parts = [notes.get(("loss", name)) for name in _PARTS]
        if any(part is None for part in parts):
            return self._not_joined("The value of `compute_loss`", MEAN)
        whole, first, last = parts
        return rule_of(notes["loss",], whole, first, last, seen.share, seen.tolerance)

    def _not_joined(self, what: str, nearest: Any, why: words.Why = words.LOOKS_ACROSS) -> Any:
        """The rule of a number that no rule joins: that all rows are computed on one replica, where that can be."""
        if self._whole.random:
            return nearest
        self._warn(
            f"{what} {why.fact}{words.ON_ONE_REPLICA if self._may_be_whole else words.DIFFERS}{why.cure}"
        )
        return [ON_ONE, nearest] if self._may_be_whole else nearest

    def _warn(self, words: str) -> None:
        """Warns once of a number, unless numbers are drawn beside it: it would be another in any case."""
        if not self._whole.random:
            warnings.warn(words, stacklevel=2)

    def _note_writes(self, shown: ShownBatch) -> None:
        """Answers by which rules the states are joined that a batch shows the step to write."""
        waiting = self._names.waiting(self._whole.writes, self.answers)
        for place, rule in shown.write_rules(waiting).items():
            variable = self._states[place]
            self.answers["write", place] = rule or declared(variable) or self._fallback(variable)

    def _fallback(self, variable: keras.Variable) -> WriteRule:
        if self._own_step:  # a queue of keys, say; layers of one's own that normalize are as those of Keras
            what = f"The value that a step writes to {variable.path!r}"
            rule = self._not_joined(what, MEAN, words.NO_STATE)
            if is_on_one(rule):
                self.answers[ALL_ROWS] = rule
                return WriteRule(FIRST)
        rule = WriteRule(MEAN if tf.as_dtype(variable.dtype).is_floating else FIRST)
        what = "the mean, weighted with the rows," if rule.kind == MEAN else "that of the first replica"
        _log.warning(
            "The value that a step writes to %r looks across the rows of a batch: of the values of the replicas %s is "
            'kept. Declare it with `add_weight(aggregation="mean" | "sum" | "only_first_replica")`.',
            variable.path,
            what,
        )
        return rule
