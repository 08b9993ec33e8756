"""Aggregation as a separate call, for a step that uses the gradient of the global batch before it is applied."""

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

from ...compat.wrong_use import WrongUse
from ...distribute.replicas import in_replica_context, local_replica_index, num_replicas, of_first_replica
from ...distribute.step_context import NOT_AGGREGATED, current_step
from .. import optimizer_checks
from ..optimizer_checks import record_of
from .aggregators import aggregate
from .call_options import CallOptions, current_options, notes_of_trace
from .run_stages import unscale
from .sparse_gradients import Pairs, is_on_gpu, map_values, unique_rows, values_of


@dataclasses.dataclass
class _Memory:
    """What a replica remembers of a variable, from `aggregate_gradients` to `apply_gradients`."""

    given: Callable[[], Any]  # returns the gradient that was passed, while it exists
    applied: bool = False  # whether the aggregated gradient was applied


def aggregate_alone(
    optimizer: Any,
    grads_and_vars: optimizer_checks.GradsAndVars,
    inner: Any = None,
    scale: Any = None,
    widen: Any = None,
) -> Pairs:
    """Run stages 1 and 2 of `inner` or of `optimizer`, which remembers it; `widen` comes first. Context: replica."""
    inner, step = inner or optimizer, current_step()
    on_replica, taken = in_replica_context(), step is not None and step.take_gradients is not None
    if taken and not on_replica:  # the step is traced for its variables alone
        return list(grads_and_vars)
    if step is not None and NOT_AGGREGATED in step.notes:
        error = step.notes[NOT_AGGREGATED](optimizer)
        if error is not None:
            raise error
    if not on_replica:
        raise WrongUse(
            "`aggregate_gradients` was called outside `strategy.run`: call it inside, in replica context."
        )
    given = optimizer_checks.check_pairs(grads_and_vars)
    present = optimizer_checks.with_gradients(inner, given)
    widened = [(g if widen is None else widen(g), v) for g, v in present]
    summed = aggregate(inner, widened, current_options())
    totals = [(unique_rows(g) if is_on_gpu() else g, v) for g, v in summed]
    pairs = unscale(inner, totals, scale)
    memory = _memory(optimizer)
    memory.update({id(v): _Memory(_reference(g)) for g, v in given if g is not None})
    found = {id(v): g for g, v in pairs}
    return [(found.get(id(v)), v) for _, v in given]


def after_aggregation(optimizer: Any, pairs: Pairs, options: CallOptions) -> tuple[Pairs, CallOptions]:
    """Return pairs and options of `apply_gradients` after `aggregate_gradients`; raise a ValueError for sums of sums."""
    if not in_replica_context():  # nothing is aggregated there
        return pairs, options
    memory = _memory(optimizer)
    known = [(g, v) for g, v in pairs if g is not None and id(v) in memory]
    if not known or options.unscaled:
        return pairs, options
    if not options.skip_aggregation:
        if not all(memory[id(v)].applied or memory[id(v)].given() is g for g, v in known):
            raise WrongUse(
                f"`apply_gradients` received gradients of {_names(known)} that differ from those passed to "
                "`aggregate_gradients`: aggregate these too, and pass `skip_gradients_aggregation=True` with the result."
            )
        for _, variable in known:
            del memory[id(variable)]
        return pairs, options
    others = [v for g, v in pairs if g is not None and id(v) not in memory]
    if others:
        raise WrongUse(
            f"`apply_gradients` received gradients of {_names(known)}, which `aggregate_gradients` aggregated, and of "
            f"{[optimizer_checks.name_of(v) for v in others]}, which it did not: pass all of them to `aggregate_gradients`."
        )
    again = [(g, v) for g, v in known if memory[id(v)].applied]
    if again:
        raise WrongUse(
            f"The gradients of {_names(again)} were aggregated once and are applied twice: "
            "call `aggregate_gradients` before each `apply_gradients(..., skip_gradients_aggregation=True)`."
        )
    for _, variable in known:
        memory[id(variable)].applied = True
    return _alike(pairs), dataclasses.replace(options, unscaled=True)


def forget_applied(optimizer: Any) -> None:
    """Forget applied gradients, because a loss was scaled: later gradients are those of this loss."""
    memory = _memory(optimizer) if in_replica_context() else {}
    for key in [key for key, each in memory.items() if each.applied]:
        del memory[key]


def _alike(pairs: Pairs) -> Pairs:
    """Return the first replica's gradients on every replica: users' code may round differently on each."""
    if num_replicas() == 1:
        return pairs
    pairs = [(g if g is None else optimizer_checks.as_gradient(g), v) for g, v in pairs]
    present = [(g, v) for g, v in pairs if g is not None]
    rest = iter(of_first_replica([values_of(g) for g, _ in present]))
    return [(g if g is None else map_values(lambda _: next(rest), g), v) for g, v in pairs]


def _memory(optimizer: Any) -> dict[int, _Memory]:
    """Return what this replica's part of the current step, trace or eager loop remembers, by the variable's identity."""
    notes, replica = notes_of_trace(), local_replica_index()
    if notes is None:
        return record_of(optimizer).aggregated.setdefault(replica, {})
    return notes.setdefault(("aggregated", id(optimizer), replica), {})


def _reference(gradient: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(gradient)
    except TypeError:
        return lambda: None


def _names(pairs: Pairs) -> list[str]:
    return [optimizer_checks.name_of(v) for _, v in pairs]
