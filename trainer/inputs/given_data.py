"""What a call of `fit`, `evaluate` or `predict` reads (`GivenData`), in one form for every input, and how (`Reading`)."""

import collections
import dataclasses
import functools
import itertools
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...distribute.arguments import number, show, whole_number
from ...distribute.workers.agreement import spans_workers
from .batch import slice_samples
from .convert import is_array, standard_arrays
from .input_checks import Sharing, same_samples
from .sources.source import Source

DISTRIBUTED = "tf.distribute.DistributedDataset"
FUNCTION = "function of tf.distribute.InputContext"


@dataclasses.dataclass(frozen=True)
class GivenData:
    """Arrays with their division into batches, or an input that has its own batches, targets and weights.

    Attributes:
        x: any input that the guide (docs/guides/input.md) lists.
        y: targets, for arrays.
        sample_weight: weights of the samples, for arrays.
        batch_size: samples of a global batch, for arrays; None: 32, or the samples divided by `steps`.
        steps: batches of an epoch; None: one pass over the data.

    Invalid values and types raise a ValueError or TypeError when it is made; what arrays have, when it is first asked for.
    """

    x: Any
    y: Any = None
    sample_weight: Any = None
    batch_size: int | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        checked = (("batch_size", "batch_size"), ("steps", "steps_per_epoch"))
        for field, name in checked:
            value = whole_number(name, getattr(self, field), optional=True)
            object.__setattr__(self, field, value)

    @functools.cached_property
    def kind(self) -> str:
        """The kind of the input, as named in messages."""
        return kind_of(self.x)

    @property
    def has_arrays(self) -> bool:
        """Whether its batches are made here, of arrays."""
        return self.kind == "array"

    @functools.cached_property
    def arrays(self) -> tuple[Any, Any, Any]:
        """(x, y, sample_weight) as nests of NumPy arrays and tensors."""
        return standard_arrays(self.x, self.y, self.sample_weight)

    @functools.cached_property
    def samples(self) -> int:
        """The number of samples of the arrays."""
        return same_samples(self.arrays)

    @property
    def samples_of_batch(self) -> int:
        """The samples of a global batch of the arrays."""
        return self.batch_size or (math.ceil(self.samples / self.steps) if self.steps else 32)

    def check_alone(self, **sizes: int | None) -> None:
        """Reject other arguments next to an input that has its own targets, weights and batches; `sizes` by their names."""
        if self.has_arrays:
            return
        for name, value, tuples in (
            ("y", self.y, "(inputs, targets)"),
            ("sample_weight", self.sample_weight, "(inputs, targets, sample_weights)"),
        ):
            if value is not None:
                raise ValueError(
                    f"{name} ({type(value).__name__}) must not be passed when x is a {self.kind}; let x yield tuples "
                    f"{tuples}."
                )
        for name, size in (sizes or {"batch_size": self.batch_size}).items():
            if size is not None:
                raise ValueError(
                    f"{name} ({size}) must not be passed when x is a {self.kind}, which has its own batches."
                )

    def first(self, count: int) -> "GivenData":
        """Return the first `count` batches, or those of an epoch, for `overfit_batches`."""
        count = min(count, self.steps or count)
        self.check_alone()
        if self.has_arrays:
            size = self.samples_of_batch
            return self._part(0, min(self.samples, count * size), batch_size=size, steps=None)
        if self.kind == DISTRIBUTED:
            raise ValueError(
                f"`overfit_batches` ({count}) cannot be used with a {self.kind}, whose single batches are not accessible: "
                "pass the tf.data.Dataset from which it was made, or a function of tf.distribute.InputContext."
            )
        return GivenData(_first_of(self.x, self.kind, count))

    def split(self, validation_split: float) -> tuple["GivenData", tuple[Any, Any, Any]]:
        """Split arrays into those for training and, at the end, for validation, before any shuffling. Arrays are views."""
        number("validation_split", validation_split, above=0, below=1)
        if not self.has_arrays:
            raise ValueError(
                f"validation_split ({validation_split}) needs arrays, but x is a {self.kind}, whose length is not known in "
                "advance: pass validation_data."
            )
        samples = self.samples
        cut = math.floor(samples * (1.0 - validation_split))
        if cut in (0, samples):
            raise ValueError(
                f"validation_split ({validation_split}) of {samples} samples leaves {cut} for training and "
                f"{samples - cut} for validation: pass more samples or a different share."
            )
        rest = self._part(cut, samples)
        return self._part(0, cut), (rest.x, rest.y, rest.sample_weight)

    def _part(self, start: int, stop: int, **changes: int | None) -> "GivenData":
        """Return the samples from `start` to `stop` of the arrays."""

        def cut(leaf: Any) -> Any:
            return leaf[start:stop] if isinstance(leaf, np.ndarray) else slice_samples(leaf, start, stop)

        x, y, sample_weight = tf.nest.map_structure(cut, self.arrays)
        return dataclasses.replace(self, x=x, y=y, sample_weight=sample_weight, **changes)

    def limit_steps(self) -> "GivenData":
        """Return it with at most the steps of Keras' global limit."""
        most = keras.config.max_steps_per_epoch()
        if not most or (self.steps is not None and self.steps <= most):
            return self
        warnings.warn(f"Limiting steps_per_epoch to {most}", stacklevel=5)
        return dataclasses.replace(self, steps=most)


@dataclasses.dataclass(frozen=True)
class Reading:
    """How a call reads its data.

    Attributes:
        strategy: that consumes the batches.
        call: what reads them, the same on all workers: the name of the method.
        custom_step: whether a custom step gets the batches: their arrays may have different numbers of samples.
        shuffle: whether to read arrays in a new random order in every epoch; "batch" shuffles within each batch.
        seed: the order of the samples is a function of it.
        class_weight: weight of each class of the targets.
        named: generators of callbacks, by name, from which Python code may draw.
        resident_bytes: larger arrays are not copied to the host's tensors but read batch by batch.
        other: another source of the same fit; arrays that both get are held once.
    """

    strategy: tf.distribute.Strategy
    call: str = "fit"
    custom_step: bool = False
    shuffle: Any = False
    seed: int = 0
    class_weight: dict[int, float] | None = None
    named: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    resident_bytes: int = 2**30
    other: Source | None = None

    @property
    def resumable(self) -> bool:
        """Whether its position will be requested: not in `evaluate` and `predict`."""
        return self.call not in ("evaluate", "predict")

    @property
    def several_workers(self) -> bool:
        """Whether the strategy spans several workers."""
        return spans_workers(self.strategy)

    @property
    def sharing(self) -> Sharing:
        """Who shares the samples of a batch."""
        return Sharing(self.custom_step, self.strategy.num_replicas_in_sync)


def kind_of(x: Any) -> str:
    """Return the kind of the input `x`, as named in messages."""
    if isinstance(x, type):
        raise TypeError(f"`x` must be an instance: pass {x.__name__}(...). Received: {show(x)}")
    if isinstance(x, tf.data.Dataset):
        return "tf.data.Dataset"
    if isinstance(x, tf.distribute.DistributedDataset):
        return DISTRIBUTED
    if isinstance(x, keras.utils.PyDataset):
        return "PyDataset"
    if hasattr(x, "get_tf_dataset"):
        return "Keras data adapter"
    if isinstance(x, list | tuple | dict | str | bytes | keras.KerasTensor | np.generic) or is_array(x):
        return "array"
    if hasattr(x, "__next__"):
        return "generator"
    if any(kind.__module__.startswith("torch.utils.data") for kind in type(x).__mro__):
        return "torch DataLoader"
    if isinstance(x, Iterable):
        return "iterable"
    return FUNCTION if callable(x) else "array"


def with_places(items: Iterator[Any], places: Iterable[str]) -> Iterator[Any]:
    """Yield `items`; an error of the code that yields them gets a note with the position in the input."""
    end = object()
    for place in places:
        try:
            item = next(items, end)
        except Exception as error:
            error.add_note(f"Raised by the input: {place} (counted from 0).")
            raise
        if item is end:
            return
        yield item


def _first_of(x: Any, kind: str, count: int) -> Any:
    places = (f"batch {number} of the {kind}" for number in itertools.count())
    if kind == "Keras data adapter":
        x, kind = x.get_tf_dataset(), "tf.data.Dataset"
    if kind == "tf.data.Dataset":
        return x.take(count).cache()
    if kind == FUNCTION:

        def first(context: tf.distribute.InputContext) -> Any:
            dataset = x(context)
            parts = max(1, context.num_replicas_in_sync // context.num_input_pipelines)
            return dataset.take(count * parts).cache() if isinstance(dataset, tf.data.Dataset) else dataset

        return first
    if kind == "PyDataset":
        numbers = range(min(count, count if x.num_batches is None else x.num_batches))
        items = with_places((x[number] for number in numbers), places)
        return collections.deque((item,) if is_array(item) else item for item in items)  # a list is one array
    return collections.deque(itertools.islice(with_places(iter(x), places), count))
