"""`find_batch_size`: the largest global batch whose training steps fit into memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...distribute.arguments import number
from ...distribute.hardware.device_memory import PeakMemory
from ...distribute.workers.agreement import exchange
from ..inputs import checks as input_checks
from ..inputs.convert import standard_arrays
from ..inputs.sources.make_source import kind_of
from .trial import check_model, trial

_SHARE = 0.9  # of the memory: the rest is for fragmentation and for other parts of a training run
_STEPS = 2  # of each size: in the second all optimizer state exists together with the gradients
_FIRST_SAMPLES = 4  # of each replica


def find_batch_size(
    model: Any, x: Any, y: Any = None, sample_weight: Any = None, *, memory: float | None = None
) -> int:
    """Measures the memory of training steps with more and more samples, and finds the largest batch size that fits.

    Memory grows in proportion to the samples: a size is tried only if the smaller sizes predict that it fits, so that
    nothing runs out of memory; the result itself is tried, too. Two steps of each size are run; then variables, random
    generators and the input are restored bit-for-bit. A later training run is the same as without the finder.

    The rest of the memory must suffice for everything else: a larger `validation_batch_size`, and state of callbacks.

    Args:
        model: compiled, with all of its variables.
        x: arrays, because they are read with several batch sizes.
        y: targets.
        sample_weight: weights of the samples.
        memory: bytes that each device may use; CPUs count as one device, the process. None: nine tenths of the smallest
            device's memory.

    Returns:
        Samples of the global batch, a multiple of the number of replicas; all samples, if they fit at once.

    Raises:
        TypeError, ValueError: an argument is invalid, or even four samples on each replica do not fit.
        RuntimeError: the operating system does not report the used memory.

    Examples:
        >>> unisono.find_batch_size(model, x, y, memory=64e9)  # 64 samples: all fit
        64
    """
    number("memory", memory, above=0, optional=True)
    check_model(model, "find_batch_size")
    kind = kind_of(x)
    if kind != "array":
        raise ValueError(
            f"`x` of `find_batch_size` must be arrays, because a {kind} makes its batches itself: pass arrays, and make its "
            "batches as large as the result."
        )
    samples = input_checks.same_samples(standard_arrays(x, y, sample_weight))
    strategy = model.distribute_strategy
    peak = PeakMemory(_devices(strategy))
    limit = (
        memory if memory is not None else _SHARE * min(row[0] for row in exchange([peak.limit()], strategy))
    )
    replicas = strategy.num_replicas_in_sync
    with trial(model, "find_batch_size", x, y, sample_weight, replicas, _STEPS) as train:

        def bytes_of(size: int) -> float:
            done = itertools.count(1)

            def end(batch: int, logs: Any = None) -> None:
                model.stop_training = next(done) >= _STEPS

            peak.reset()
            try:
                train(keras.callbacks.LambdaCallback(on_train_batch_end=end), size)
            except tf.errors.ResourceExhaustedError:
                return np.inf
            return max(row[0] for row in exchange([peak.most()], strategy))

        return largest_that_fits(bytes_of, limit, samples, replicas)


def largest_that_fits(bytes_of: Callable[[int], float], limit: float, samples: int, multiple: int) -> int:
    """The largest size that fits into `limit` bytes, a multiple of `multiple` or all `samples`.

    `bytes_of(size)` has a fixed part and a part in proportion to the size; infinity where memory ran out. `ValueError`: the
    smallest size does not fit.
    """
    size = min(samples, _FIRST_SAMPLES * multiple)
    fits, used = size, bytes_of(size)
    if used > limit:
        raise ValueError(
            f"A step with {size} samples needs {used / 2**20:.0f} MiB, but only {limit / 2**20:.0f} MiB are free: use a "
            "smaller model, a policy with float16, or devices with more memory."
        )
    per_sample, too_many = used / size, samples + 1  # an upper bound: it ignores the fixed part
    measured = ran_out = False
    while fits < samples:
        foreseen = fits + int((limit - used) / per_sample) if per_sample > 0 else samples
        size = min(2 * fits, foreseen, samples, too_many - 1)
        if ran_out:
            size = min(size, (fits + too_many) // 2)
        size = size if size == samples else size // multiple * multiple
        if size <= fits:
            size = fits + multiple
            if measured or size >= too_many:
                break
        needed = bytes_of(size)
        if needed < np.inf:
            per_sample, measured = max(0.0, needed - used) / (size - fits), True
        if needed <= limit:
            fits, used = size, needed
        else:
            too_many, ran_out = size, ran_out or needed == np.inf
    return fits


def _devices(strategy: tf.distribute.Strategy) -> tuple[str, ...]:
    """The devices of this worker's replicas."""
    try:
        return tuple(strategy.extended.worker_devices)
    except RuntimeError:  # no strategy
        gpus = tf.config.list_logical_devices("GPU")
        return (gpus[0].name,) if gpus else ("/device:CPU:0",)
