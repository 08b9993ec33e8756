"""Runs the program of a case and collects its results."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from helpers import copies_are_equal, mirrored

import unisono
from unisono.optimizers.building import optimizers_of

from .case import Case
from .parts.data import Rows, fit_arguments, make_rows
from .parts.models import compiled_model, input_names, output_names


@dataclasses.dataclass
class Numbers:
    """The results of a program."""

    shown: dict[str, np.ndarray]  # history, weights, optimizer state, the results of `evaluate` and `predict`
    unequal: list[str]  # the paths of the variables whose copies differ


def strategy_of(name: str) -> Any:
    """A strategy by name, such as "mirrored 3"."""
    kind, _, count = name.partition(" ")
    devices = [f"CPU:{index}" for index in range(int(count))]
    if kind == "central":
        return tf.distribute.experimental.CentralStorageStrategy(devices, "CPU:0")
    if kind == "pipeline" and count == "4":
        return unisono.distribute.sharded(unisono.distribute.Pipeline(devices, micro_batches=1, replicas=2))
    if kind == "pipeline":
        return unisono.distribute.Pipeline(devices, micro_batches=int(count))
    strategy = mirrored(int(count))
    if kind == "sharded":  # in many packs, so that the backward pass waits for all-reduces
        packs = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=64)
        strategy.extended._communication_options = packs
        level = "weights" if count == "2" else "optimizer"
        return unisono.distribute.sharded(strategy, level)
    return strategy


@contextlib.contextmanager
def settings(case: Case) -> Iterator[None]:
    """Resets Keras, and sets the policy of a case."""
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(case.seed + 1)
    keras.config.set_floatx("float64" if case.policy == "float64" else "float32")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about slow half precision, data that runs out, ...
        unisono.mixed_precision.set_global_policy(case.policy)
        try:
            yield
        finally:
            keras.config.set_floatx("float32")
            unisono.mixed_precision.set_global_policy("float32")


def run(case: Case, module: Any = unisono, on: Any = None, callbacks: Sequence[Any] = ()) -> Numbers:
    """Builds, trains, evaluates and predicts with `module`, on a strategy or (`on=None`) on one device."""
    with settings(case):
        remat = keras.RematScope("full" if case.remat and on else None)
        with on.scope() if on else contextlib.nullcontext(), remat:
            model = compiled_model(case, module, **_how(case, one=on is None))
        rows = make_rows(case, input_names(case), output_names(case))
        history = model.fit(verbose=0, callbacks=list(callbacks), **fit_arguments(case, rows))
        return Numbers(_shown(model, history.history, case, rows), _unequal(model, on))


def _how(case: Case, one: bool) -> dict[str, Any]:
    """How steps are looped; eagerly on one device, which is fastest for few steps and gives the same result."""
    if one or case.way == "eager":
        return {"run_eagerly": True}
    jit_compile = {"graph": False, "xla": True, "auto": "auto"}[case.way]
    return {"jit_compile": jit_compile, "steps_per_execution": case.steps_per_execution}


def _shown(model: keras.Model, history: Any, case: Case, rows: Rows) -> dict[str, np.ndarray]:
    found: dict[str, Any] = {"history": history}
    if "evaluate" in case.then:
        found["evaluate"] = model.evaluate(
            rows.x, rows.y, case.batch, verbose=0, sample_weight=rows.sample_weight, return_dict=True
        )
    if "predict" in case.then:
        found["predict"] = model.predict(rows.x, case.batch, verbose=0)
    found["weights"] = {f"{i} {v.name}": v.numpy() for i, v in enumerate(model.weights)}
    slots = [v for each in optimizers_of(model) for v in each.variables]
    found["slots"] = {f"{i} {v.name}": v.numpy() for i, v in enumerate(slots)}
    return dict(_flat(found))


def _flat(nest: Any, path: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """The leaves of a nest with their paths."""
    if isinstance(nest, dict):
        for name, value in nest.items():
            yield from _flat(value, f"{path}/{name}" if path else name)
    elif isinstance(nest, list) and nest and not np.isscalar(nest[0]):
        for index, value in enumerate(nest):
            yield from _flat(value, f"{path}/{index}")
    else:
        yield path, np.asarray(nest)


def _unequal(model: keras.Model, strategy: Any) -> list[str]:
    if not isinstance(strategy, tf.distribute.MirroredStrategy):
        return []
    variables = model.weights + model.optimizer.variables
    return [variable.path for variable in variables if not copies_are_equal([variable], strategy)]
