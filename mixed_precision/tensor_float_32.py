"""TensorFloat-32: float32 matrix products with a 10-bit mantissa."""

from __future__ import annotations

import tensorflow as tf


def enable_tensor_float_32(enabled: bool) -> None:
    """Allows or forbids TensorFloat-32 inside float32 matrix products and convolutions.

    It matters on NVIDIA GPUs of compute capability 8.0 or more, where TensorFlow allows it from the start:
    inputs of such products are rounded to 10 bits of mantissa (about three digits), sums are kept in float32,
    and the product is several times faster. Forbid it where float32 is meant to the last digit: when
    comparing with a CPU or another number of replicas, in scientific computing, or with gradients that are
    small differences of large numbers. It changes nothing on a CPU, in float16, bfloat16 or float64.

    Args:
        enabled: True or False.

    Raises:
        TypeError: `enabled` is not a bool.

    Context: host, before the first step is compiled.
    """
    if not isinstance(enabled, bool):
        raise TypeError(
            f"enabled must be True or False; received {enabled!r} of type {type(enabled).__name__}."
        )
    tf.config.experimental.enable_tensor_float_32_execution(enabled)
