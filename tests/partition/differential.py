"""Compares a function of a batch on one device with its partitioned program in uneven and empty parts."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from partition_in_parts import NotPartitioned, Parts

Batch = Sequence[np.ndarray]

KINDS = ("right", "gathered", "refused", "error", "wrong", "not covered")
DEFECTS = ("error", "wrong")
# Parts of a sum are added in another order: `n` roundings of half a bit each, times what operations amplify. A wrong rule
# moves a result by at least the share of one sample, 1e-2.
TOLERANCES = {8: 1e-11, 4: 2e-4, 2: 3e-2}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a program.

    Attributes:
        kind: one of `KINDS`. Right: as on one device. Gathered: right, but tensors are gathered. Refused: the step runs on
            one replica. Error: TensorFlow fails on replicas where one device works. Not covered: one device fails, too.
        details: the reason, or the numbers of samples on each replica and what differs.
        samples: those of each replica at which it fails.
    """

    kind: str
    details: str = ""
    samples: tuple[int, ...] = ()


def examine(fn: Callable[..., Any], batch_of: Callable[[int], Batch], sizes: Sequence[int]) -> Outcome:
    """Trace `fn` once, run it on batches of these sizes in parts, and compare with one device."""
    largest = batch_of(max(sizes))
    try:
        batches, whole = _on_one_device(fn, batch_of, sizes)
    except Exception as error:  # whatever a program raises on one device
        return Outcome("not covered", _brief(error))
    try:
        parts = Parts(fn, *largest)
    except NotPartitioned as reason:
        return Outcome("refused", str(reason))
    except Exception as error:
        return Outcome("error", f"while labelling: {_brief(error)}")
    for replicas in (2, 3):
        try:
            run = parts.traced_for(replicas)
        except Exception as error:
            return Outcome("error", f"while copying: {_brief(error)}")
        for size, batch in batches.items():
            for samples in splits(size, replicas):
                found = _compared(run, (tf.constant(samples), *batch), whole[size], samples)
                if found is not None:
                    return found
    size = max(batches)
    for samples in ((size - 1, 1), (size // 2, 0, size - size // 2)):  # sizes that are known while tracing
        parts.batch = batches[size]
        found = _compared(parts.on_replicas, (samples,), whole[size], samples)
        if found is not None:
            return dataclasses.replace(found, details=f"of a known size: {found.details}")
    return Outcome("gathered" if parts.communicated[0] else "right")


def splits(size: int, replicas: int) -> Iterator[tuple[int, ...]]:
    """Even parts, uneven ones, and parts without samples."""
    ends = [number * size // replicas for number in range(replicas + 1)]
    found = [tuple(b - a for a, b in itertools.pairwise(ends))]
    found.append((size, *[0] * (replicas - 1)))
    stream = random.Random(size)
    cuts = sorted(stream.randint(0, size) for _ in range(replicas - 1))
    found.append(tuple(b - a for a, b in itertools.pairwise([0, *cuts, size])))
    yield from dict.fromkeys(found)


def _on_one_device(fn: Any, batch_of: Any, sizes: Sequence[int]) -> tuple[dict[int, Any], dict[int, Any]]:
    """The batches that one device can compute, and its results."""
    largest = batch_of(max(sizes))
    specs = [tf.TensorSpec([None, *each.shape[1:]], each.dtype) for each in largest]
    run = tf.function(
        lambda *batch: [tf.convert_to_tensor(each) for each in tf.nest.flatten(fn(*batch))],
        autograph=False,
        input_signature=specs,
    )
    run.get_concrete_function()
    batches, whole, last = {}, {}, None
    for size in sizes:
        batch = [tf.constant(each) for each in batch_of(size)]
        try:
            found = [np.asarray(each.numpy()) for each in run(*batch)]
        except tf.errors.OpError as error:
            last = error
        else:
            batches[size], whole[size] = batch, found
    if not whole:
        raise last if last is not None else ValueError("there are no sizes")
    return batches, whole


def _compared(run: Any, arguments: Sequence[Any], whole: Batch, samples: tuple[int, ...]) -> Outcome | None:
    try:
        copies = run(*arguments)
    except Exception as error:
        return Outcome("error", _brief(error), samples)
    for number, (expected, *found) in enumerate(zip(whole, *copies)):
        found = [np.asarray(each) for each in found]
        if expected.dtype.kind == "S":  # of a scalar
            found = [each.astype(expected.dtype) for each in found]
        for each in found:
            reason = difference(each, expected)
            if reason is None and not _equal_bits(each, found[0]):
                reason = f"replicas differ: {_shown(each)} and {_shown(found[0])}"
            if reason is not None:
                return Outcome("wrong", f"output {number}: {reason}", samples)
    return None


def difference(found: np.ndarray, expected: np.ndarray) -> str | None:
    """What differs; None where the numbers are as close as another order of additions leaves them."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return f"{found.dtype} {found.shape} instead of {expected.dtype} {expected.shape}"
    wide, real = found, expected
    if expected.dtype.kind not in "fcOSUbiu":  # bfloat16 and float8
        wide, real = found.astype("float32"), expected.astype("float32")
    if real.dtype.kind not in "fc":
        return None if np.array_equal(wide, real) else f"{_shown(found)} instead of {_shown(expected)}"
    size = expected.dtype.itemsize // (2 if real.dtype.kind == "c" else 1)
    tolerance = TOLERANCES.get(size, 0.3)
    finite = np.abs(real[np.isfinite(real)])
    scale = max(1.0, float(finite.max())) if finite.size else 1.0
    with np.errstate(all="ignore"):
        close = np.isclose(wide, real, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    return None if close.all() else f"{_shown(found)} instead of {_shown(expected)}"


def _equal_bits(one: np.ndarray, other: np.ndarray) -> bool:
    if one.dtype.kind in "OSU":
        return bool(np.array_equal(one, other))
    return one.shape == other.shape and one.tobytes() == other.tobytes()


def _shown(array: np.ndarray) -> str:
    return np.array2string(array.ravel()[:6], precision=4, separator=" ") + (
        f" {array.shape}" if array.ndim else ""
    )


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:240]}"
