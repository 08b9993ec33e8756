"""The rules, one file a family of operations; `RULES` is the table."""

from . import elementwise, indexing, lists, products, random, reductions, shapes, slicing  # noqa: F401
from .view import PARTIAL_MEAN, RULES, Ruling, View

__all__ = ["PARTIAL_MEAN", "RULES", "Ruling", "View"]
