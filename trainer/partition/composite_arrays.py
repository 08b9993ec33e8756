"""Arrays that are several tensors of a program: ragged and sparse ones of a batch, and ragged results."""

import dataclasses
from collections.abc import Sequence

from .labels import Label, Ragged, label_offsets, label_sharded, sizes, with_label
from .program import Value
from .sizes.positions import IN_COLUMN
from .sizes.size import Entries, Extent, Samples
from .sizes.size_arrays import as_sizes


@dataclasses.dataclass(frozen=True)
class RaggedArray:
    """A ragged array: the numbers of its `tensors`, which are values, and offsets of each ragged dimension, outer first."""

    tensors: tuple[int, ...]

    def count(self, names: dict[int, list[Samples]]) -> None:
        """Name the number of entries of each input; of offsets, of what has them."""
        values, first, *others = self.tensors
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

    def is_divided(self, labels: Sequence[Label]) -> bool:
        """Return whether results with these labels are the parts of an array by its samples."""
        values, *offsets = (labels[number] for number in self.tensors)
        owner = None
        for each in offsets:
            if not each.is_offsets or each.chosen.of != owner:
                return False
            owner = each.chosen.values
        return values == label_sharded(0, chosen=owner)


@dataclasses.dataclass(frozen=True)
class SparseArray:
    """A sparse array: the numbers of its `tensors`, which are places, values and its shape.

    Places begin with the number of a sample. `sample_shape` is that of one, as far as it is known.
    """

    tensors: tuple[int, int, int]
    sample_shape: tuple[int | None, ...]

    def count(self, names: dict[int, list[Samples]]) -> None:
        """Name the number of entries, which places and values have alike."""
        *entries, shape = self.tensors
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
