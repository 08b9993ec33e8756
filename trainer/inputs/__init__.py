"""Where batches come from: every kind of input as one `Source` of global batches."""

from .batch import concat_samples, sample_count, slice_samples
from .sources.derived_inputs import split_for_validation
from .sources.make_source import make_source
from .sources.source import Chunk, Source

__all__ = [
    "Chunk",
    "Source",
    "concat_samples",
    "make_source",
    "sample_count",
    "slice_samples",
    "split_for_validation",
]
