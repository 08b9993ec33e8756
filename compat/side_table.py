"""What the library keeps for objects of Keras, TensorFlow and users: a record next to each, no attribute of theirs."""

import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Record = TypeVar("Record")


class SideTable(Generic[Record]):
    """A record for each object, by its identity, as long as it lives. A record holds its object weakly, or not at all."""

    def __init__(self, make: Callable[[], Record]) -> None:
        self._make = make
        self._records: dict[int, tuple[weakref.ref[Any], Record]] = {}

    def of(self, owner: Any) -> Record:
        """Return the record of an object, which is made at the first call."""
        key, records = id(owner), self._records
        if key not in records:
            records.setdefault(key, (weakref.ref(owner, lambda _: records.pop(key, None)), self._make()))
        return records[key][1]
