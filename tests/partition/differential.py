"""Compares functions of a batch on one device with their partitioned programs, in uneven and empty parts."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from partition.known_values import find_false_value
from partition_in_parts import NotPartitioned, Parts

KINDS = ("right", "gathered", "rejected", "error", "wrong", "not covered")
DEFECTS = ("error", "wrong")
# Parts of a sum are added in another order: n roundings of half a bit each, times what operations amplify. A wrong rule
# moves a result by about the share of one sample, 1e-2.
TOLERANCES = {8: 1e-11, 4: 2e-4, 2: 3e-2, 1: 0.3}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a program.

    Attributes:
        kind: one of `KINDS`. Right: as on one device. Gathered: right, but tensors are gathered. Rejected: the step runs on
            one replica. Error: replicas fail where one device works. Not covered: one device fails, too.
        details: the reason, or what differs.
        samples: those of each replica at which it fails.
    """

    kind: str
    details: str = ""
    samples: tuple[int, ...] = ()

    def __str__(self) -> str:
        return " ".join(filter(None, (self.kind, str(self.samples or ""), self.details)))


@dataclasses.dataclass
class Program:
    """A function of a batch, its batches by the number of samples, and the results of one device for each.

    `narrowest`: the bytes of the narrowest number that is summed over samples, if the results are wider.
    """

    fn: Callable[..., Any]
    batches: Mapping[int, Sequence[Any]]
    narrowest: int = 8
    whole: dict[int, list[np.ndarray]] = dataclasses.field(default_factory=dict)

    @property
    def key(self) -> tuple[int, ...] | None:
        """Programs with the same key can share an array; None: this one cannot."""
        arrays = next(iter(self.batches.values()))
        is_one = len(arrays) == 1 and arrays[0].ndim == 2 and arrays[0].dtype == "float64"
        return tuple(self.batches) if is_one and arrays[0].shape[0] == next(iter(self.batches)) else None

    def run_on_one_device(self) -> Outcome | None:
        """Computes the results; returns why if there are none. Batches on which it fails are left out."""
        error: Exception = ValueError("there are no batches")
        for size, batch in list(self.batches.items()):
            try:
                found = tf.nest.flatten(self.fn(*map(tf.constant, batch)))
                self.whole[size] = [_array(tf.convert_to_tensor(each)) for each in found]
            except Exception as reason:  # whatever an operation raises
                error = reason
        self.batches = {size: batch for size, batch in self.batches.items() if size in self.whole}
        return None if self.whole else Outcome("not covered", brief(error))

    def run_traced(self) -> bool:
        """Computes the results in a graph, where oneDNN may have other kernels; returns whether all are the same."""
        first = next(iter(self.batches.values()))
        specs = [tf.TensorSpec([None, *each.shape[1:]], each.dtype) for each in first]
        run = tf.function(lambda *batch: tf.nest.flatten(self.fn(*batch)), specs, autograph=False)
        before, self.whole = self.whole, {}
        for size, batch in self.batches.items():
            self.whole[size] = [_array(each) for each in run(*map(tf.constant, batch))]
        pairs = [pair for size in before for pair in zip(before[size], self.whole[size])]
        return all(difference(one, other) is None for one, other in pairs)


def examine_all(programs: Sequence[Program], quick: bool = False) -> list[Outcome]:
    """What becomes of each program; those of one matrix are in one graph, as long as they are right."""
    found: dict[int, Outcome] = {}
    together: dict[Any, list[int]] = {}
    for number, program in enumerate(programs):
        fails = program.run_on_one_device() if not program.whole else None
        if fails is not None:
            found[number] = fails
        else:
            together.setdefault(program.key or number, []).append(number)
    for numbers in together.values():
        outcomes = _examine_some([programs[number] for number in numbers], quick)
        found.update(zip(numbers, outcomes))
    return [found[number] for number in range(len(programs))]


def _examine_some(programs: Sequence[Program], quick: bool) -> list[Outcome]:
    outcome, gathers = _examine(programs, quick)
    if len(programs) == 1:
        try:
            if outcome.kind in DEFECTS and not programs[0].run_traced():
                outcome, gathers = _examine(programs, quick)
        except (
            Exception
        ) as reason:  # one device fails in a graph, for instance because TensorFlow's own shapes are wrong
            outcome = Outcome("not covered", brief(reason))
        return [Outcome("gathered") if gathers and outcome.kind == "right" else outcome]
    if outcome.kind == "right":
        return [
            Outcome("gathered" if any(f"program_{n}/" in name for name in gathers) else "right")
            for n in range(len(programs))
        ]
    half = len(programs) // 2
    return [*_examine_some(programs[:half], quick), *_examine_some(programs[half:], quick)]


def _examine(programs: Sequence[Program], quick: bool) -> tuple[Outcome, list[str]]:
    """One outcome for programs in one graph, and the names of the operations for which tensors are gathered."""
    fn, batches, whole = _joined(programs)
    try:
        parts = Parts(fn, *batches[max(batches)])
    except NotPartitioned as reason:
        return Outcome("rejected", str(reason)), []
    except Exception as error:
        return _failed_trace(fn, batches, error), []
    if (false := find_false_value(parts, batches)) is not None:
        return Outcome("wrong", false), []
    found = _of_open_sizes(parts, batches, whole, (2,) if quick else (2, 3))
    found = found or _of_known_size(parts, batches, whole, quick)
    return found or Outcome("right"), parts.gathers


def _joined(programs: Sequence[Program]) -> tuple[Any, dict[int, list[Any]], dict[int, list[Any]]]:
    """A function that runs the programs, its batches, and the results of one device with their `narrowest`."""
    whole = {
        n: [(each, program.narrowest) for program in programs for each in program.whole[n]]
        for n in programs[0].batches
    }
    if len(programs) == 1:
        return programs[0].fn, dict(programs[0].batches), whole
    sizes = list(programs[0].batches)
    widths = [program.batches[sizes[0]][0].shape[1] for program in programs]

    def fn(x: Any) -> list[Any]:
        results = []
        for number, (program, columns) in enumerate(zip(programs, tf.split(x, widths, 1))):
            with tf.name_scope(f"program_{number}"):
                results.append(program.fn(columns))
        return results

    batches = {n: [np.concatenate([program.batches[n][0] for program in programs], 1)] for n in sizes}
    return fn, batches, whole


def _failed_trace(fn: Any, batches: Mapping[int, Sequence[Any]], error: Exception) -> Outcome:
    """An error of the partition pass, or of TensorFlow where it traces a function with an open batch."""
    specs = [tf.TensorSpec([None, *each.shape[1:]], each.dtype) for each in batches[max(batches)]]
    try:
        tf.function(fn, input_signature=specs, autograph=False).get_concrete_function()
    except Exception as reason:
        return Outcome("not covered", brief(reason))
    return Outcome("error", f"while labelling: {brief(error)}")


def _of_open_sizes(parts: Parts, batches: Any, whole: Any, numbers: Sequence[int]) -> Outcome | None:
    for replicas in numbers:
        try:
            run = parts.traced_for(replicas)
        except Exception as error:
            return Outcome("error", f"while copying: {brief(error)}")
        for size, batch in batches.items():
            for samples in splits(size, replicas):
                given = (tf.constant(samples), *map(tf.constant, batch))
                found = _compared(run, given, whole[size], samples, parts)
                if found is not None:
                    return found
    return None


def _of_known_size(parts: Parts, batches: Any, whole: Any, quick: bool) -> Outcome | None:
    size = max(batches)
    parts.batch = [np.asarray(each) for each in batches[size]]
    for samples in [(size // 2, 0, size - size // 2), (size - 1, 1)][: 1 if quick else 2]:
        found = _compared(parts.on_replicas, (samples,), whole[size], samples, parts)
        if found is not None:
            return dataclasses.replace(found, details=f"with known sizes: {found.details}")
    return None


def splits(size: int, replicas: int) -> Iterator[tuple[int, ...]]:
    """Even parts, uneven ones, and parts without samples."""
    ends = [number * size // replicas for number in range(replicas + 1)]
    found = [tuple(b - a for a, b in itertools.pairwise(ends))]
    found.append((size, *[0] * (replicas - 1)))
    stream = random.Random(size)
    cuts = sorted(stream.randint(0, size) for _ in range(replicas - 1))
    found.append(tuple(b - a for a, b in itertools.pairwise([0, *cuts, size])))
    yield from dict.fromkeys(found)


def _compared(
    run: Any, arguments: Sequence[Any], whole: Any, samples: tuple[int, ...], parts: Parts
) -> Outcome | None:
    try:
        copies = run(*arguments)
    except Exception as error:
        return Outcome("error", brief(error), samples)
    for number, ((expected, narrowest), *given) in enumerate(zip(whole, *copies)):
        found = list(map(_array, given))
        for each in found:
            reason = difference(each, expected, narrowest)
            same = _equal_bits if _has_one_order(parts.graph) else lambda *pair: difference(*pair) is None
            if reason is None and not same(each, found[0]):
                reason = f"replicas differ: {_shown(each)} and {_shown(found[0])}"
            if reason is not None:
                return Outcome("wrong", f"output {number}: {reason}", samples)
    return None


def _has_one_order(graph: Any) -> bool:
    """Whether replicas round alike: `AddN` begins with one of three that nobody else still reads."""
    found = graph.as_graph_def()
    parts = [found.node, *(function.node_def for function in found.library.function)]
    return not any(node.op == "AddN" and node.attr["N"].i > 2 for part in parts for node in part)


def difference(found: np.ndarray, expected: np.ndarray, narrowest: int = 8) -> str | None:
    """What differs; None where the numbers are as close as another order of additions leaves them."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return f"{found.dtype} {found.shape} instead of {expected.dtype} {expected.shape}"
    wide, real = found, expected
    if expected.dtype.kind not in "fcOSUbiu":  # bfloat16 and float8
        wide, real = found.astype("float32"), expected.astype("float32")
    if real.dtype.kind not in "fc":
        return None if np.array_equal(wide, real) else f"{_shown(found)} instead of {_shown(expected)}"
    size = min(narrowest, expected.dtype.itemsize // (2 if real.dtype.kind == "c" else 1))
    finite = np.abs(real[np.isfinite(real)])
    scale = max(1.0, float(finite.max())) if finite.size else 1.0
    tolerance = TOLERANCES[size]
    with np.errstate(all="ignore"):
        close = np.isclose(wide, real, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    return None if close.all() else f"{_shown(found)} instead of {_shown(expected)}"


def _equal_bits(one: np.ndarray, other: np.ndarray) -> bool:
    if one.dtype.kind == "O":
        return bool(np.array_equal(one, other))
    if one.dtype.kind in "fc":  # the sign of NaN has no meaning
        one, other = (np.where(np.isnan(each), np.nan, each) for each in (one, other))
    return one.shape == other.shape and one.tobytes() == other.tobytes()


def _array(tensor: Any) -> np.ndarray:
    found = np.asarray(tensor.numpy() if tf.is_tensor(tensor) else tensor)
    return found.astype(object) if found.dtype.kind == "S" else found  # of a scalar


def _shown(array: np.ndarray) -> str:
    shape = f" {array.shape}" if array.ndim else ""
    return np.array2string(array.ravel()[:6], precision=4, separator=" ") + shape


def brief(error: BaseException) -> str:
    """An error in a line."""
    text = " ".join(str(error).split())
    if "Detected at node" in text:
        text = f"{text[text.index('Detected at node') :][:60]} ... {text[-160:]}"
    return f"{type(error).__name__}: {text[:300]}"
