"""Arrays of a batch that are several inputs of a program: ragged and sparse ones."""

import dataclasses

from .labels import Label, Ragged, label_offsets, label_sharded, sizes, with_label
from .program import Value
from .sizes.positions import IN_COLUMN
from .sizes.size import Entries, Extent, Samples
from .sizes.size_arrays import as_sizes


@dataclasses.dataclass(frozen=True)
class RaggedInput:
    """A ragged array: the numbers of its `inputs`, which are values, and offsets of each ragged dimension, outer first."""

    inputs: tuple[int, ...]

    def count(self, names: dict[int, list[Samples]]) -> None:
        """Name the number of entries of each input; of offsets, of what has them."""
        values, first, *others = self.inputs
        count = names[first][0]
        for number in (*others, values):
            count = Entries(count)
            names[number] = [count, *names[number][1:]]

    def describe(self, values: Value, *offsets: Value) -> None:
        """Set what is known of the inputs."""
        owner = None
        for each, inner in zip(offsets, (*offsets[1:], values)):
            chosen = _find_choice(inner, each)
            _set_label(each, label_offsets(chosen, owner))
            each.shape, owner = [chosen.samples + 1], chosen
        _set_label(values, label_sharded(0, chosen=owner))


@dataclasses.dataclass(frozen=True)
class SparseInput:
    """A sparse array: the numbers of its `inputs`, which are places, values and its shape.

    Places begin with the number of a sample. `sample_shape` is that of one, as far as it is known.
    """

    inputs: tuple[int, int, int]
    sample_shape: tuple[int | None, ...]

    def count(self, names: dict[int, list[Samples]]) -> None:
        """Name the number of entries, which places and values have alike."""
        *entries, shape = self.inputs
        count = Entries(names[shape][0])
        names |= {number: [count, *names[number][1:]] for number in entries}

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
