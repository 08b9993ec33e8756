"""The two ways in which the stages are run: on whole gradients, or on shards of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ...distribute.replicas import function_of_its_own, once_per_copy
from .users_code import has_code_of_users

Pairs = list[tuple[Any, Any]]


@dataclasses.dataclass(frozen=True)
class Way:
    """How the stages are run: on whole gradients (`run_stages.WHOLE`), or on shards of them (`optimizers.sharding`).

    Attributes:
        aggregate: stage 1, as `aggregate`.
        all_finite: stage 3, as `all_finite`.
        look: `look(watch, pairs, verdict)` for a `GradientWatch`.
        update: stages 4 and 5, as `update`.
        once: makes of `update` what each replica calls, as `once`.
    """

    aggregate: Callable[..., Pairs]
    all_finite: Callable[..., tf.Tensor]
    look: Callable[..., Any]
    update: Callable[..., None]
    once: Callable[..., Callable[..., Any]]


def once(optimizer: Any, variables: Sequence[Any], write: Callable[..., None]) -> Callable[..., Any]:
    """`write`, so that each copy of each variable is written once, and user code computes the same bits on each replica."""
    write = once_per_copy(write)
    return function_of_its_own(write) if has_code_of_users(optimizer, variables) else write
