"""What is kept next to an optimizer, which may have been made as Keras' own."""

import dataclasses
from typing import Any

from ..compat.side_table import SideTable


@dataclasses.dataclass
class OptimizerRecord:
    """The memory of an optimizer's stages, of this process."""

    accumulated: dict[Any, Any] = dataclasses.field(
        default_factory=dict
    )  # variables that had a gradient, by key
    warned_missing: list[list[str]] = dataclasses.field(
        default_factory=list
    )  # variables without one, in warnings
    # By replica: what `aggregate_gradients` remembers where no step is traced, see `aggregated_gradients.py`.
    aggregated: dict[int, dict[int, Any]] = dataclasses.field(default_factory=dict)


record_of = SideTable(OptimizerRecord).of
