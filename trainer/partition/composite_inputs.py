"""Arrays of a batch that are several inputs of a program: ragged and sparse ones."""

import dataclasses

from .labels import Label, Ragged, label_offsets, label_sharded, sizes, with_label
from .program import Value
from .sizes.positions import IN_COLUMN
from .sizes.size import Extent
from .sizes.size_arrays import as_sizes


@dataclasses.dataclass(frozen=True)
class RaggedInput:
    """A ragged array: the numbers of its `inputs`, which are values and offsets."""

    inputs: tuple[int, int]

    def describe(self, values: Value, offsets: Value) -> None:
        """Set what is known of the inputs."""
        chosen = _find_choice(values, offsets)
        _set_label(values, label_sharded(0, chosen=chosen))
        _set_label(offsets, label_offsets(chosen))
        offsets.shape = [chosen.samples + 1]


@dataclasses.dataclass(frozen=True)
class SparseInput:
    """A sparse array: the numbers of its `inputs`, which are places, values and its shape.

    Places begin with the number of a sample. `sample_shape` is that of one, as far as it is known.
    """

    inputs: tuple[int, int, int]
    sample_shape: tuple[int | None, ...]

    def describe(self, places: Value, values: Value, shape: Value) -> None:
        """Set what is known of the inputs."""
        chosen = _find_choice(values, shape)
        for entries in (places, values):
            _set_label(entries, label_sharded(0, chosen=chosen))
        places.progression = IN_COLUMN
        shape.shape, shape.constant = (
            [1 + len(self.sample_shape)],
            as_sizes([chosen.samples, *self.sample_shape]),
        )
        _set_label(shape, sizes(0))


def _find_choice(values: Value, samples: Value) -> Ragged:
    count, extent = (_extent_of(value) for value in (values, samples))
    return Ragged(count, extent)


def _extent_of(value: Value) -> Extent:
    assert value.shape is not None
    return value.shape[0]


def _set_label(value: Value, label: Label) -> None:
    value.labels = with_label(value.labels, 0, label)
