"""The samples of a case, as its kind of input."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from helpers import Batches

from ..case import Case, Output
from ..rules import has_targets, per_step

STEPS, FEATURES, WORDS, CLASSES = 4, 3, 7, 3
SHAPES = {"vector": (FEATURES,), "tokens": (STEPS,), "series": (STEPS, FEATURES)}
CLASS_WEIGHT = {0: 0.5, 1: 1.0, 2: 3.0}
VALIDATION_ROWS = 3


@dataclasses.dataclass
class Rows:
    """The data of a case: nests of arrays with samples along axis 0; `y` and `sample_weight` may be None."""

    x: Any
    y: Any
    sample_weight: Any

    @property
    def given(self) -> Any:
        """`x`, `(x, y)` or `(x, y, sample_weight)`."""
        if self.y is None:
            return self.x
        return (self.x, self.y) if self.sample_weight is None else (self.x, self.y, self.sample_weight)

    def batches(self, size: int) -> list[Any]:
        """The batches in order, as in a dataset."""
        given = self.given
        count = len(keras.tree.flatten(self.x)[0])
        return [
            keras.tree.map_structure(lambda a, at=at: a[at : at + size], given)
            for at in range(0, count, size)
        ]


def packed(values: Sequence[Any], structure: str, names: Sequence[str]) -> Any:
    """Values as "single", "list" or "dict"."""
    if structure == "single":
        return values[0]
    return list(values) if structure == "list" else dict(zip(names, values))


def make_rows(case: Case, input_names: Sequence[str], output_names: Sequence[str]) -> Rows:
    """The samples of a case, determined by its seed."""
    random = np.random.default_rng(case.seed)
    steps = (STEPS,) if per_step(case) else ()
    inputs = [_input(kind, case.rows, random) for kind in case.inputs]
    targets = [_target(output, (case.rows, *steps), random) for output in case.outputs]
    weights = [_weights((case.rows, *steps[: case.sample_weight == "steps"]), random) for _ in case.outputs]
    inputs_as = case.inputs_as if len(inputs) > 1 else "single"
    weights_as = case.outputs_as if case.sample_weight == "outputs" else "single"
    return Rows(
        x=packed(inputs, inputs_as, input_names),
        y=packed(targets, case.outputs_as, output_names) if has_targets(case) else None,
        sample_weight=None if case.sample_weight == "none" else packed(weights, weights_as, output_names),
    )


def _input(kind: str, rows: int, random: np.random.Generator) -> np.ndarray:
    """Sequences have at least one step and are padded with zeros."""
    lengths = random.integers(1, STEPS + 1, size=(rows, 1))
    there = np.arange(STEPS) < lengths
    if kind == "tokens":
        return np.where(there, random.integers(1, WORDS, size=(rows, STEPS)), 0).astype("int32")
    values = random.normal(size=(rows, *SHAPES[kind])).astype(keras.config.floatx())
    return values * there[..., None] if kind == "series" else values


def _target(output: Output, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    if output.kind == "classes":
        return random.integers(0, CLASSES, size=shape).astype("int32")
    if output.kind == "binary":
        return random.integers(0, 2, size=(*shape, 1)).astype(keras.config.floatx())
    values = random.normal(size=(*shape, 2)).astype(keras.config.floatx())
    return values if output.kind == "values" else values[..., 0]


def _weights(shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    weights = random.uniform(0.1, 2.0, size=shape) * (random.uniform(size=shape) < 0.8)
    return weights.astype(keras.config.floatx())


def fit_arguments(case: Case, rows: Rows) -> dict[str, Any]:
    """The arguments of `fit` that pass the samples."""
    batches = [_tuples(batch) for batch in rows.batches(case.batch)]
    if case.data == "arrays":
        given = {"x": rows.x, "y": rows.y, "sample_weight": rows.sample_weight, "batch_size": case.batch}
    elif case.data == "tensors":
        x, y, weight = keras.tree.map_structure(
            lambda a: None if a is None else tf.constant(a), (rows.x, rows.y, rows.sample_weight)
        )
        given = {"x": x, "y": y, "sample_weight": weight, "batch_size": case.batch}
    elif case.data == "generator":
        given = {"x": _forever(batches), "steps_per_epoch": len(batches)}
    elif case.data == "PyDataset":
        given = {"x": Batches(batches)}
    else:
        given = {"x": _dataset(case, rows)}
    if case.class_weight:
        given["class_weight"] = CLASS_WEIGHT
    if case.validation:
        given["validation_data"] = rows.batches(VALIDATION_ROWS)[0]
        given["validation_batch_size"] = VALIDATION_ROWS - 1
    return {**given, "epochs": case.epochs, "shuffle": case.shuffle}


def _dataset(case: Case, rows: Rows) -> tf.data.Dataset:
    dataset = tf.data.Dataset.from_tensor_slices(keras.tree.map_structure(np.asarray, _tuples(rows.given)))
    if case.data == "dataset of unknown length":
        dataset = dataset.filter(lambda *_: True)
    return dataset.batch(case.batch)


def _tuples(nest: Any) -> Any:
    """Lists as tuples: tf.data converts lists to tensors, and Keras' adapters reject them."""
    if isinstance(nest, (list, tuple)):
        return tuple(map(_tuples, nest))
    return {name: _tuples(value) for name, value in nest.items()} if isinstance(nest, dict) else nest


def _forever(batches: list[Any]) -> Iterator[Any]:
    while True:
        yield from batches
