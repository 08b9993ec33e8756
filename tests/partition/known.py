"""Programs that are known to be wrong, with a reason. Empty, unless a defect of TensorFlow stands in the way."""

KNOWN: dict[str, str] = {}
"""Reasons by the names of `hand_written.py`."""

KNOWN_OPERATIONS: dict[str, str] = {}
"""Reasons by the operations whose programs of seed 0 are wrong."""
