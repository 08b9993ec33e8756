"""Where batches come from: every kind of input as one `Source` of global batches."""

from .batch import concat_samples, sample_count, slice_samples
from .given_data import GivenData, Reading
from .sources.make_source import make_source
from .sources.source import Chunk, Source

__all__ = [
    "Chunk",
    "GivenData",
    "Reading",
    "Source",
    "concat_samples",
    "make_source",
    "sample_count",
    "slice_samples",
]
