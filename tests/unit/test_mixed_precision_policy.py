"""Policies: what they set, what they reject, what they report about each kind of hardware."""

import re
import warnings

import keras
import pytest
import tensorflow as tf
from helpers import as_in_new_process

from unisono import mixed_precision
from unisono.mixed_precision import hardware, policy
from unisono.mixed_precision.hardware import cpu_flags, why_slow


@pytest.fixture(autouse=True)
def fast_hardware(monkeypatch):
    monkeypatch.setattr(hardware, "why_slow", lambda *args: None)


def dense():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])


@pytest.mark.parametrize(
    ("name", "compute", "variable"),
    [
        ("mixed_float16", "float16", "float32"),
        ("mixed_bfloat16", "bfloat16", "float32"),
        ("float32", "float32", "float32"),
        ("float64", "float64", "float64"),
    ],
)
def test_set_global_policy_is_followed_by_keras_layers(name, compute, variable):
    assert mixed_precision.set_global_policy(name) is None
    layer = keras.layers.Dense(2)
    layer.build((None, 3))
    assert (layer.compute_dtype, layer.kernel.dtype) == (compute, variable)
    assert mixed_precision.global_policy() is keras.config.dtype_policy()
    assert mixed_precision.global_policy().name == name


def test_set_global_policy_takes_a_policy_object():
    given = mixed_precision.Policy("mixed_float16")
    mixed_precision.set_global_policy(given, loss_scale=8)
    assert mixed_precision.global_policy() == given
    assert policy.loss_scale_of(mixed_precision.global_policy()) == 8.0
    assert policy.loss_scale_of(given) == 8.0, "by name, from the global policy"


def test_policy_scope_restores_after_an_error():
    mixed_precision.set_global_policy("mixed_float16", loss_scale=4.0)
    before = mixed_precision.global_policy()
    with pytest.raises(KeyError):
        with mixed_precision.policy_scope("float32") as inner:
            assert keras.layers.Dense(1).compute_dtype == "float32"
            assert inner.name == "float32"
            raise KeyError
    assert mixed_precision.global_policy() is before
    assert policy.loss_scale_of(before) == 4.0


def test_a_layer_can_have_a_policy_of_its_own():
    mixed_precision.set_global_policy("mixed_float16")
    assert keras.layers.Dense(1, dtype="float32").compute_dtype == "float32"
    assert keras.layers.Dense(1, dtype=mixed_precision.Policy("mixed_bfloat16")).compute_dtype == "bfloat16"


def test_model_keeps_the_loss_scale_of_its_policy():
    mixed_precision.set_global_policy("mixed_float16", loss_scale=None)
    model = dense()
    mixed_precision.set_global_policy("float32")
    assert policy.loss_scale_of(model.dtype_policy) is None
    assert policy.loss_scale_of(keras.DTypePolicy("mixed_float16")) == "dynamic"
    assert policy.loss_scale_of(keras.DTypePolicy("mixed_bfloat16")) is None


def test_bfloat16_is_explained():
    with pytest.warns(UserWarning, match="use 'mixed_bfloat16'"):
        mixed_precision.set_global_policy("bfloat16")


def test_model_that_says_float32_itself_is_not_rejected(tmp_path):
    saved = dense()
    saved.save(tmp_path / "float32.keras")
    mixed_precision.set_global_policy("mixed_float16")
    with mixed_precision.policy_scope("float32"):
        policy.check_policy_order(scoped := dense())
    policy.check_policy_order(scoped)
    policy.check_policy_order(keras.saving.load_model(tmp_path / "float32.keras"))
    policy.check_policy_order(dense())
    policy.check_policy_order(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, dtype="float32")]))


def test_model_of_an_earlier_policy_and_a_head_of_a_later_one_are_not_rejected():
    backbone = dense()
    mixed_precision.set_global_policy("mixed_float16")
    policy.check_policy_order(keras.Sequential([backbone, keras.layers.Dense(1)]))
    model = dense()
    mixed_precision.set_global_policy("float32")
    policy.check_policy_order(model)


def test_tensor_float_32_is_switched():
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    try:
        for enabled in (False, True):
            mixed_precision.enable_tensor_float_32(enabled)
            assert tf.config.experimental.tensor_float_32_execution_enabled() is enabled
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


def test_hardware_warning_comes_once(monkeypatch):
    as_in_new_process(monkeypatch)
    monkeypatch.setattr(hardware, "why_slow", lambda dtype, *args: f"slow in {dtype}")
    with pytest.warns(mixed_precision.SlowPrecisionWarning, match="slow in float16") as caught:
        mixed_precision.set_global_policy("mixed_float16")
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mixed_precision.set_global_policy("mixed_float16")
        mixed_precision.set_global_policy("float32")


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
