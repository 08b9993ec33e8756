"""How attention is computed: a rule of what every replica shares, with its reason."""

import dataclasses
from typing import NamedTuple

PLAIN, BLOCKS = "plain", "blocks"
FEWEST_TOKENS = 1024
"""Causal queries, and keys, from which on blocks took at most 0.91 of the plain CPU time wherever it was measured."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """What a call of attention asks for, and what decides about it.

    Nothing in it differs between replicas: no batch and no number of heads.

    Attributes:
        on_gpu: whether it runs on a GPU.
        queries, keys: the numbers of tokens; None: not known when the step is traced.
        dtype: in which it is computed, by name.
        causal: whether each query sees earlier keys only, and no mask says so: then half of the blocks are left out.
        bias: whether a bias is added to the scores.
        shapes: None, or what is wrong with shapes or the mask, so that only Keras' own function takes them.
        asked: the argument `flash_attention`.
        disabled: whether `keras.config.disable_flash_attention()` was called.
    """

    on_gpu: bool
    queries: int | None
    keys: int | None
    dtype: str
    causal: bool = True
    bias: bool = False
    shapes: str | None = None
    asked: bool | None = None
    disabled: bool = False


class Choice(NamedTuple):
    """PLAIN, which is Keras' own function, or BLOCKS, and why."""

    body: str
    reason: str


def choose(problem: Problem) -> Choice:
    """Return how to compute attention. Blocks are asked for by `True`, and follow from the extents with `None`."""
    if problem.asked is False:
        return Choice(PLAIN, "`flash_attention=False`")
    if problem.disabled:
        return Choice(PLAIN, "`keras.config.disable_flash_attention()` was called")
    if (missing := _find_missing(problem)) is not None:
        return Choice(PLAIN, missing)
    if problem.asked:
        return Choice(BLOCKS, "`flash_attention=True`")
    if problem.on_gpu:
        return Choice(PLAIN, "blocks are not measured on GPUs yet; `flash_attention=True` selects them")
    if not problem.causal:
        return Choice(
            PLAIN,
            "blocks are always faster only where `is_causal=True`, without a mask, leaves half of them out",
        )
    tokens = min(problem.queries or 0, problem.keys or 0)
    if tokens < FEWEST_TOKENS:
        return Choice(PLAIN, f"{tokens} tokens are fewer than {FEWEST_TOKENS}")
    return Choice(BLOCKS, f"{FEWEST_TOKENS} tokens or more")


def _find_missing(problem: Problem) -> str | None:
    """Return what blocks lack; None: they can compute it."""
    if problem.bias:
        return "a bias is added to the scores"
    if problem.dtype not in ("float16", "bfloat16", "float32", "float64"):
        return f"its type is {problem.dtype}"
    if problem.queries is None or problem.keys is None:
        return "the number of tokens is not known when the step is traced"
    return problem.shapes
