"""The rule that chooses how attention is computed."""

import dataclasses

import pytest

from unisono.distribute.attention.choice import BLOCKS, FEWEST_TOKENS, PLAIN, Problem, choose

LONG = Problem(False, FEWEST_TOKENS, FEWEST_TOKENS, "float32")


@pytest.mark.parametrize(
    ("body", "reason", "changes"),
    [
        (BLOCKS, "1024 tokens or more", {}),
        (PLAIN, "1023 tokens are fewer", {"queries": FEWEST_TOKENS - 1}),
        (PLAIN, "tokens are fewer", {"keys": 512}),
        (PLAIN, "leaves half of them out", {"causal": False}),
        (BLOCKS, "flash_attention=True", {"causal": False, "asked": True}),
        (PLAIN, "not measured on GPUs", {"on_gpu": True}),
        (BLOCKS, "flash_attention=True", {"on_gpu": True, "asked": True, "queries": 3}),
        (PLAIN, "flash_attention=False", {"asked": False}),
        (PLAIN, "disable_flash_attention", {"disabled": True, "asked": True}),
        (PLAIN, "a bias", {"bias": True, "asked": True}),
        (PLAIN, "int32", {"dtype": "int32"}),
        (PLAIN, "not known", {"keys": None}),
        (PLAIN, "no fit", {"shapes": "no fit", "asked": True}),
    ],
)
def test_choice_follows_the_problem_with_its_reason(body, reason, changes):
    choice = choose(dataclasses.replace(LONG, **changes))
    assert choice.body == body
    assert reason in choice.reason
