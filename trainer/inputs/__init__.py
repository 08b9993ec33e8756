"""Where batches come from: every kind of input as one `Source` of global batches."""

from .make_source import make_source
from .rows import concat_rows, row_count, slice_rows
from .source import Chunk, Source
from .split import split_for_validation

__all__ = ["Chunk", "Source", "concat_rows", "make_source", "row_count", "slice_rows", "split_for_validation"]
