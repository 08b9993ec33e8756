"""Warnings where a resumed run could not have the same bits."""

import contextlib
import gc
import random
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from ...compat.keras_private.variables import raw_value
from ...compat.tensorflow_graphs.graphs import find_drawing_operations, operations_are_deterministic
from ...distribute.arguments import show
from ...distribute.hardware.devices import is_gpu
from ...distribute.replicas import copies_of
from ...state.random_state import GENERATORS, WITH_VARIABLE, find_global, mark_of, state_of
from ...state.trained_model import FitState, TrainedModel
from ..callback import find_named_generators
from .snapshot import StateHolders

_ONE_WAY = (
    "The training data comes from a Python generator, which cannot be rewound: a resumed run draws from a new "
    "generator and skips the batches already used, which is right only if the new one yields the same batches. Use a "
    "keras.utils.PyDataset or a tf.data.Dataset to resume bit-for-bit in any case."
)
# Whose own generators change no number of a model.
_LIBRARIES = ("keras", "tensorflow", "unisono", "tempfile")


def check_generators(generators: Any) -> list[Any]:
    """Return the argument `generators` as a list, or raise a ValueError."""
    listed = isinstance(generators, list | tuple)
    if not listed or not all(isinstance(each, (*GENERATORS, *WITH_VARIABLE)) for each in generators):
        raise ValueError(f"`generators` must be a list of generators. Received: {show(generators)}")
    return list(generators)


class ExactnessCheck:
    """Warns of the first reason why a training cannot be resumed exactly, when it begins or when it is first known."""

    def __init__(self, model: TrainedModel, fit_state: FitState) -> None:
        """Begin to watch the inputs, before a backup moves them."""
        self._model, self._fit_state, self._checks, self._found = model, fit_state, 0, False
        self._first: dict[int, tuple[Any, bytes]] = {}  # every generator, by its id, and its first state
        self._inputs = [each for each in (fit_state.source, fit_state.validation) if hasattr(each, "watch")]
        for source in self._inputs:
            source.watch(find_named_generators(fit_state.callbacks))

    def check(self, holders: StateHolders) -> None:
        """Check at the beginning, and before each save, what `find_state_holders` returned."""
        model, fit_state = self._model, self._fit_state
        validation = _why_inexact(fit_state.validation) or ""
        reasons = [
            _why_inexact(fit_state.source),
            validation.replace("x ", "validation_data ", 1),
            _cut(fit_state.validation),
            _adds_in_any_order(model),
        ]
        if self._checks < 3:  # the steps are compiled, and the second save knows what the first step has made
            reasons += [
                _explain_shared_variable(model, fit_state),
                _draws_in_kernels(model),
                self._explain_unnamed(holders),
            ]
        if not self._found and (found := next(filter(None, reasons), None)):
            self._found = True
            warnings.warn(found, stacklevel=2)
        self._checks += 1

    def _explain_unnamed(self, holders: StateHolders) -> str | None:
        """Return the warning if a generator moves that no backup holds. What libraries hold changes no number."""
        known = [*holders.generators.values(), *find_global().values()]
        known += [each for group in holders.variables.values() for each in group]
        known += [each for source in self._inputs for each in source.find_restored()]
        restored = {id(state_of(each)) for each in known}
        if self._checks < 2:  # before the first step, and with what it has made
            for generator, mark in _find_alive():
                self._first.setdefault(id(generator), (generator, mark))  # the object keeps its id
        for generator, first in self._first.values():
            moved = id(state_of(generator)) not in restored and mark_of(generator) != first
            if moved and not _is_of_library(generator):
                return (
                    f"A resumed run cannot be exact, because something draws from a {type(generator).__name__} "
                    f"({_find_place(generator)}) that is in no backup: pass it as `generators` of BackupAndRestore, or hold "
                    "it in a layer, in a callback, or in the module of a function that draws from it."
                )
        return None


def _is_of_library(generator: Any) -> bool:
    """Return whether an object or a module of a library that draws for itself holds a generator."""
    holders = gc.get_referrers(generator)
    modules = [each.get("__name__") if isinstance(each, dict) else type(each).__module__ for each in holders]
    return any(str(module).partition(".")[0] in _LIBRARIES for module in modules)


def _find_place(generator: Any) -> str:
    """Return the module and the name of a generator there."""
    modules = [(name, getattr(each, "__dict__", {})) for name, each in [*sys.modules.items()]]
    places = (f"{name}.{key}" for name, held in modules for key in [*held] if held.get(key) is generator)
    return next(places, "held in no module")


def _draws_in_kernels(model: TrainedModel) -> str | None:
    """Return the warning if the steps, once compiled, draw from random operations that nothing can save."""
    graph = getattr(model.train_function, "graph", lambda: None)()
    names = [] if graph is None else find_drawing_operations(graph)
    if not names:
        return None
    return (
        f"A resumed run cannot be exact, because TensorFlow cannot save the state of a random operation ({names[0]}): "
        "draw with keras.random and a SeedGenerator, or from a tf.random.Generator."
    )


def _adds_in_any_order(model: TrainedModel) -> str | None:
    """Return the warning if the model is on a GPU, whose kernels add in varying order."""
    on_gpu = any(is_gpu(getattr(copies_of(v)[0], "device", "")) for v in model.weights[:1])
    if operations_are_deterministic() or not on_gpu:
        return None
    return (
        "Some operations add in a different order each time on a GPU: a resumed run cannot be exact; call "
        "tf.config.experimental.enable_op_determinism() before you create the model."
    )


def _why_inexact(source: Any) -> str | None:
    if source is None:
        return None
    return getattr(source, "inexact", None) if getattr(source, "rewinds", True) else _ONE_WAY


def _cut(validation: Any) -> str | None:
    """Return the warning if every validation pass leaves a pipeline that has drawn further than it was read."""
    steps = validation.position.given_steps if getattr(validation, "own_state", ()) else None
    if steps is None:
        return None
    return (
        f"validation_data is a tf.data pipeline that draws from a generator, and validation_steps ({steps}) ends each pass "
        "while it is read ahead: a resumed run cannot be exact; use Dataset.take instead of validation_steps."
    )


def _explain_shared_variable(model: TrainedModel, fit_state: FitState) -> str | None:
    """Return the warning if both inputs, or an input and the steps, once compiled, use the state of one generator."""
    x, validation = (
        list(getattr(each, "own_state", ())) for each in (fit_state.source, fit_state.validation)
    )
    graph = getattr(model.train_function, "graph", lambda: None)()
    used = {id(captured) for captured, _ in graph.captures} if graph is not None else set()
    by_model = [each for each in (*x, *validation) if id(getattr(raw_value(each), "handle", None)) in used]
    if not (shared := by_model or [each for each in x if any(each is other for other in validation)]):
        return None
    return (
        f"{'The model and the input' if by_model else 'x and validation_data'} draw from the same random numbers "
        f"({getattr(shared[0], 'name', type(shared[0]).__name__)}), in an order that depends on how far the input is read "
        "ahead: a resumed run cannot be exact; use a separate generator for each."
    )


def _find_alive() -> Iterator[tuple[Any, bytes]]:
    """Yield every generator of this process, wherever it is, with its mark."""
    kinds = {*_find_kinds((*GENERATORS, tf.random.Generator))} - {random.SystemRandom}
    for each in [each for each in gc.get_objects() if type(each) in kinds]:
        with contextlib.suppress(AttributeError, NotImplementedError):  # of a generator in a graph
            yield each, mark_of(each)


def _find_kinds(kinds: Iterable[type]) -> Iterator[type]:
    """Yield classes, and all that are derived from them."""
    for kind in kinds:
        yield kind
        yield from _find_kinds(type.__subclasses__(kind))
