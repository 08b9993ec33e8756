"""Where batches come from: every kind of input as one `Source` of global batches."""

from .sources.derived_inputs import split_for_validation
from .sources.make_source import make_source
from .sources.source import Chunk, Source

__all__ = [
    "Chunk",
    "Source",
    "make_source",
    "split_for_validation",
]
