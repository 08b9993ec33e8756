"""Labels: how a value of the single-device program is distributed over the replicas."""

from typing import Any, NamedTuple

from ...distribute.mesh import FLAT


class Label(NamedTuple):
    """How one tensor is distributed.

    Every number refers to the global batch, also a position; only the extent of a tensor along its sharded axis is local:

        REPLICATED   T = t_r                  the same on every replica
        SHARDED      T = concat_r t_r         along `axis`, which has the samples of the batch or is divided into parts
        PARTIAL_SUM  T = sum_r t_r
        PARTIAL_MAX, PARTIAL_MIN              T = max_r t_r, min_r t_r
        SIZES        T = t_r, except that element `axis` is the local extent of a sharded axis
        OFFSETS      T = where the values of each sample of a ragged array, or of each of other ragged values, begin, and
                     where the last ones end; t_r counts from this replica's first value
        PLACES       T = concat_r t_r but for what t_r counts from: numbers that are positions of values of a ragged array
        COUNT        T = 1 + sum_r (t_r - 1): how many OFFSETS there are, if other ragged values have them
        OWN          t_r is only meaningful on its replica: a key to draw random numbers with
        STORED       t_r is one of the equal parts of T along `axis`, or of T flattened (FLAT): they are gathered before an
                     operation computes with T
        STATISTIC    t_r is that of this replica's samples (batch statistics that are not synchronized): a part of a sum
                     where it is a gradient, a part of a mean where it is written

    Attributes:
        kind: one of these.
        axis: int; the sharded or stored axis, or the element of a vector of SIZES.
        blocks: int; how many copies of the batch follow one another along the axis: two where both views of a batch
            were concatenated.
        chosen: None, or an id of the data-dependent choice (a mask) by which samples of the batch remain. Of the values of
            a ragged array, of which each sample has its own number: `Ragged`; of PLACES, OFFSETS and COUNT: `Places`.
            `Joined`, if T is in another order.
    """

    kind: str
    axis: int = 0
    blocks: int = 1
    chosen: Any = None

    @property
    def is_count(self) -> bool:
        """Whether it is COUNT."""
        return self.kind == "count"

    @property
    def is_offsets(self) -> bool:
        """Whether it is OFFSETS."""
        return self.kind == "offsets"

    @property
    def is_places(self) -> bool:
        """Whether it is PLACES."""
        return self.kind == "places"

    @property
    def counts_values(self) -> bool:
        """Whether numbers count from the first ragged value of their replica."""
        return self.kind in ("offsets", "places")

    @property
    def is_not_gathered(self) -> bool:
        """Whether the parts of replicas do not say what the whole is: it is computed from whole inputs."""
        return self.is_places or isinstance(self.chosen, Joined)

    @property
    def is_sizes(self) -> bool:
        """Whether it is SIZES."""
        return self.kind == "sizes"

    @property
    def is_stored(self) -> bool:
        """Whether it is STORED."""
        return self.kind == "stored"

    @property
    def is_sharded(self) -> bool:
        """Whether it is SHARDED."""
        return self.kind == "sharded"

    @property
    def is_partial(self) -> bool:
        """Whether it is a partial sum, maximum or minimum."""
        return self.kind.startswith("partial")

    def __str__(self) -> str:
        text = self.kind
        if self.kind in ("sharded", "stored", "sizes") and self.axis != FLAT:
            text += f" along axis {self.axis}"
        if self.blocks > 1:
            text += f" in {self.blocks} blocks"
        return text + (", chosen by data" if self.chosen else "")


class Ragged(NamedTuple):
    """By which values of a ragged array belong to samples, or to other ragged values: the sizes of both, for every batch.

    Arrays with equal sizes have equal offsets, which the step checks. `filled`: each sample has a value.
    """

    values: Any
    samples: Any
    filled: bool = False


class Places(NamedTuple):
    """Whose positions PLACES are, and what has them: samples, if it is None, or other ragged values."""

    values: Ragged
    of: Ragged | None = None


class Joined(NamedTuple):
    """Instead of a choice: the parts of several tensors, with these labels, behind one another on each replica."""

    labels: tuple[Label, ...]


OPEN = "any"
"""Instead of a choice, for the shape of the elements of a list: each replica has its own extent, or all have -1."""


Labels = tuple[Label, ...]
"""How one tensor is distributed along each axis of the mesh of replicas, first along that of the batch."""

REPLICATED = Label("replicated")
PARTIAL_SUM = Label("partial sum")
PARTIAL_MAX = Label("partial max")
PARTIAL_MIN = Label("partial min")
PARTIAL_MEAN = Label("partial mean")
"""Made by an operation: the mean over this replica's samples; times its share of the batch it is a term of a sum."""
OWN = Label("own")
STATISTIC = Label("statistic")
EMPTY = Label("empty list")
"""Of a list of tensors to which nothing was added."""
MEAN_OF_STATISTICS = Label("mean of statistics")
"""Requested for an assigned STATISTIC: the mean over the replicas, weighted with their samples."""


SAMPLES = Label("samples")
"""Requested for an output of `predict_step`: sharded along the first axis where possible, else replicated."""
SHARES = Label("shares")
"""Requested for a result of a custom loop: sharded along the first axis where possible, else a partial sum."""
LOGS = Label("logs")
"""Requested for a log: a partial sum where it is one, which is summed when a call ends, else replicated."""


def label_sharded(axis: int, blocks: int = 1, chosen: Any = None) -> Label:
    """Return the label of a tensor whose axis has the samples of the batch."""
    return Label("sharded", axis, blocks, chosen)


def sizes(axis: int, chosen: Any = None) -> Label:
    """Return the label of a vector of sizes whose element `axis` is the local extent of a sharded axis."""
    return Label("sizes", axis, chosen=chosen)


def label_offsets(values: Ragged, of: Ragged | None = None) -> Label:
    """Return the label of where the values of samples, or of other ragged values, begin, and the last ones end."""
    return Label("offsets", chosen=Places(values, of))


def label_places(values: Ragged, of: Ragged | None = None) -> Label:
    """Return the label of positions of ragged values."""
    return Label("places", chosen=Places(values, of))


def label_stored(axis: int) -> Label:
    """Return the label of a tensor of which each replica keeps an equal part along an axis, or FLAT, until it is read."""
    return Label("stored", axis)


def with_label(labels: Labels, axis: int, label: Label) -> Labels:
    """Return the labels, with this one along an axis of the mesh."""
    return *labels[:axis], label, *labels[axis + 1 :]


def are_together(one: Label, other: Label) -> bool:
    """Return whether two tensors are SHARDED along the same axis, with the same samples in the same order."""
    return one.is_sharded and one == other


def needs_collective(have: Label, want: Label) -> bool:
    """Return whether a conversion between two labels needs communication."""
    if have.is_partial:
        return want != have
    if have == STATISTIC:
        return want != PARTIAL_SUM
    if have.is_stored or have.counts_values or have.is_count:
        return want != have
    if have.is_sizes:
        return have.chosen is not None and not want.is_sizes
    if have.is_sharded:
        return not are_together(have, want)
    return False
