"""The message about the speed of a dtype, for each kind of machine."""

import re

import pytest

from unisono.mixed_precision.hardware import cpu_flags, why_slow

ICE_LAKE = frozenset({"avx2", "avx512f"})
COOPER_LAKE = ICE_LAKE | {"avx512_bf16"}
GRANITE_RAPIDS = COOPER_LAKE | {"avx512_fp16", "amx_bf16", "amx_fp16"}


@pytest.mark.parametrize(
    ("dtype", "capabilities", "flags", "words"),
    [
        ("float16", [], ICE_LAKE, r"lacks avx512_fp16 or amx_fp16: use 'float32' for speed"),
        ("bfloat16", [], ICE_LAKE, r"lacks avx512_bf16 or amx_bf16: use 'float32'"),
        ("float16", [], COOPER_LAKE, r"use 'mixed_bfloat16' \(this CPU has avx512_bf16\) or 'float32'"),
        ("bfloat16", [], COOPER_LAKE, None),
        ("float16", [], GRANITE_RAPIDS, None),
        ("float16", [], frozenset(), None),
        ("float16", [(6, 1)], GRANITE_RAPIDS, r"compute capability 6.1: it needs 7.0 or more; use 'float32'"),
        ("float16", [(7, 0)], ICE_LAKE, None),
        ("bfloat16", [(7, 5)], GRANITE_RAPIDS, r"7.5: it needs 8.0 or .* use 'mixed_float16' or 'float32'"),
        ("bfloat16", [(9, 0), (6, 0)], ICE_LAKE, r"6.0: it needs 8.0 or more; use 'float32'"),
        ("bfloat16", [(9, 0)], ICE_LAKE, None),
        ("float16", [None], ICE_LAKE, None),
    ],
)
def test_why_slow(dtype, capabilities, flags, words):
    sentence = why_slow(dtype, capabilities, flags)
    assert sentence is None if words is None else re.search(words, sentence)


def test_cpu_flags_of_x86_arm_and_no_file(tmp_path):
    x86, arm = tmp_path / "x86", tmp_path / "arm"
    x86.write_text("processor\t: 0\nflags\t\t: fpu avx512_bf16\nbugs\t: none\nflags\t: other\n")
    arm.write_text("processor\t: 0\nFeatures\t: fp asimdhp\n")
    assert cpu_flags(str(x86)) == {"fpu", "avx512_bf16"}
    assert cpu_flags(str(arm)) == {"fp", "asimdhp"}
    assert cpu_flags(str(tmp_path / "none")) == frozenset()
