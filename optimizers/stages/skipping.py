"""How a step is skipped: the update is not computed, or computed and not written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ...distribute.devices import is_gpu
from ...distribute.sharding.value import own_copy
from .users_code import has_code_of_users


def skips_by_choice(optimizer: Any, variables: Sequence[Any]) -> bool:
    """Whether a skipped update is computed, and the old values are chosen when it is written.

    So it is where variables are on a GPU, which a conditional waits for in every step. On a CPU the conditional costs
    nothing and spares the update. What code of a user's own does beside writing must not happen in a skipped step.

    Context: replica.
    """
    if tf.executing_eagerly() or not variables or not is_gpu(str(own_copy(variables[0]).device)):
        return False
    return not has_code_of_users(optimizer, list(variables))
