"""Attention, and its gradient: one operation each, divided along the samples or the heads."""

from ....distribute.attention.operation import BACKWARD, FORWARD, letters_of
from ..labels import PARTIAL_SUM
from .call import Call
from .row import COMPARES, add_rows
from .terms import Terms


def _find_terms(call: Call) -> Terms:
    """Return the axes. Heads of keys that groups of queries share get a part of their gradient from each part of a group."""
    ones = [[extent == 1 for extent in tensor.shape] for tensor in call.op.inputs]
    inputs, outputs = letters_of(call.type, ones)
    return Terms(inputs, outputs, mixed="TSHV", reduced=PARTIAL_SUM)


add_rows(f"{FORWARD} {BACKWARD}", terms=_find_terms, reason=COMPARES)
