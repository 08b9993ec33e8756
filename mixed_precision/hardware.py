"""Whether this machine computes faster in float16 or bfloat16 than in float32; TensorFloat-32."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from ..distribute.arguments import show
from ..distribute.hardware.devices import gpu_details

CPU_INSTRUCTIONS = {
    "float16": ("avx512_fp16", "amx_fp16", "asimdhp"),
    "bfloat16": ("avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"),
}
"""Flags of /proc/cpuinfo, any one of which means arithmetic in the dtype; the last of each: 64-bit Arm."""

GPU_CAPABILITY = {"float16": (7, 0), "bfloat16": (8, 0)}
"""The first NVIDIA compute capability with matrix units for the dtype (Volta; Ampere)."""

_warned: set[str] = set()


class SlowPrecisionWarning(UserWarning):
    """The policy is not faster on this machine; `set_global_policy` and `policy_scope` warn.

    Examples:
        >>> warnings.simplefilter("ignore", unisono.mixed_precision.SlowPrecisionWarning)  # memory matters, not speed
    """


def warn_if_slow(dtype: str, stacklevel: int = 2) -> None:
    """Warn, once per process, if the visible devices do not compute faster in float16 or bfloat16; starts no device."""
    if dtype not in CPU_INSTRUCTIONS or dtype in _warned:
        return
    if (sentence := why_slow(dtype, gpu_capabilities(), cpu_flags())) is not None:
        _warned.add(dtype)
        warnings.warn(sentence, SlowPrecisionWarning, stacklevel=stacklevel)


def why_slow(dtype: str, capabilities: Sequence[tuple[int, int] | None], flags: frozenset[str]) -> str | None:
    """Return why `dtype` is not faster, or None: by the GPUs' compute capabilities (None: unknown), or the CPU's flags."""
    other = "bfloat16" if dtype == "float16" else "float16"
    known = [c for c in capabilities if c is not None]
    if capabilities:
        if not (slow := [c for c in known if c < GPU_CAPABILITY[dtype]]):
            return None
        have, need = min(slow), GPU_CAPABILITY[dtype]
        instead = f"'mixed_{other}' or " if min(known) >= GPU_CAPABILITY[other] else ""
        return (
            f"Policy 'mixed_{dtype}' saves memory but is not faster on a GPU of compute capability "
            f"{have[0]}.{have[1]}: it needs {need[0]}.{need[1]} or more; use {instead}'float32' for speed."
        )
    if not flags or flags & set(CPU_INSTRUCTIONS[dtype]):
        return None
    usable = sorted(flags & set(CPU_INSTRUCTIONS[other]))
    instead = f"'mixed_{other}' (this CPU has {usable[0]}) or " if usable else ""
    needed = " or ".join(CPU_INSTRUCTIONS[dtype][:2])
    return (
        f"Policy 'mixed_{dtype}' is not faster on this CPU, which lacks {needed}: use {instead}'float32' for "
        f"speed, or a GPU of compute capability {'.'.join(map(str, GPU_CAPABILITY[dtype]))} or more."
    )


def cpu_flags(path: str = "/proc/cpuinfo") -> frozenset[str]:
    """Return the instruction sets of the first processor listed in `path`; empty without such a file."""
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    fields = (line.partition(":") for line in lines)
    flags = (value for key, _, value in fields if key.strip() in ("flags", "Features"))
    return frozenset(next(flags, "").split())


def gpu_capabilities() -> list[tuple[int, int] | None]:
    """Return the compute capability of every visible GPU, None where it is unknown."""
    return [each.get("compute_capability") for each in gpu_details()]


def enable_tensor_float_32(enabled: bool) -> None:
    """Allow or forbid TensorFloat-32 inside float32 matrix products and convolutions.

    On NVIDIA GPUs of compute capability 8.0 or more, TensorFlow allows it by default: inputs of such products are rounded
    to 10 bits of mantissa (about three digits), sums are in float32, and the product is several times faster. Forbid it
    where you need full float32: to compare with a CPU or a different number of replicas, or for gradients that are small
    differences of large numbers. It changes nothing on a CPU. Call it before the first step is compiled.

    Examples:
        >>> unisono.mixed_precision.enable_tensor_float_32(False)
        >>> unisono.mixed_precision.enable_tensor_float_32(True)  # TensorFlow's default
    """
    if not isinstance(enabled, bool):
        raise TypeError(f"`enabled` must be True or False. Received: {show(enabled)}")
    tf.config.experimental.enable_tensor_float_32_execution(enabled)
