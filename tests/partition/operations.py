"""Draws calls of all operations, compares them in parts with one device: `python -m tests.partition.operations`.

It prints how many operations are covered, and what became of their programs. A failing program is made smaller as long as it
fails alike, and printed with the command that runs it again.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import os
import random
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "helpers")]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from cheap_graphs import as_for_users
from partition.declared_calls import DECLARED
from partition.differential import DEFECTS, KINDS, Outcome, Program, examine_all
from partition.drawing import Drawing, NoCall, definition, draw_program
from partition.drawn_case import CONTEXTS, Argument, Case, Step
from partition.keras_calls import KERAS_OPERATIONS, KerasDrawing
from partition.smaller import smaller

from unisono.trainer.partition.operations import ROWS

COMMAND = "python -m tests.partition.operations"
SIZES, QUICK_SIZES = (1, 2, 3, 4, 5, 7, 9), (1, 2, 5, 9)
ATTEMPTS = 60  # to draw a call that one device can compute
TOGETHER = 8  # programs in one graph

NO_STEPS = re.compile(
    r"Quantize(d|Down|V2)|TPU|Xla|BoostedTrees|Cudnn|Parse|Decode|Encode|Debug|Requant|UniformD|UniformQ|UniformR"
    r"|Stateless|Sdca|.*SparseCo|.*Summary|TensorArray|Deserialize|Serialize|Copy|Ragged|PyFunc"
)
"""Operations of files, of other machines, of quantized types and of random numbers, which steps have no use for."""

OTHERS = """
    Batch Unbatch UnbatchGrad Enter Exit Merge Switch NextIteration LoopCond ReadFile MatchingFiles SobolSample
    ShardedFilename ShardedFilespec CheckPinned FractionalAvgPool FractionalMaxPool FractionalAvgPoolGrad
    FractionalMaxPoolGrad GenerateBoundingBoxProposals GenerateVocabRemapping KmeansPlusPlusInitialization
    KMC2ChainInitialization RandomGammaGrad RandomIndexShuffle Dequantize ComputeAccidentalHits StringFormat
    ExtractJpegShape CTCBeamSearchDecoder
"""
UNUSABLE = {
    "BroadcastGradientArgs": "a sum over an axis with one entry may be named or not: both are right",
    "LSTMBlockCellGrad": "TensorFlow ends the process where shapes are wrong",
    "MatrixLogarithm": "does not end for some matrices",
    **dict.fromkeys(
        ("MaxPoolGradGrad", "MaxPoolGradGradV2", "MaxPool3DGradGrad"), "undefined for outputs of other inputs"
    ),
    "keras.correlate": "returns memory that it did not write, as the gradient of an empty convolution",
    "BlockLSTM": "returns memory that it did not write",
    "BlockLSTMV2": "returns memory that it did not write",
}

NO_GRADIENT = {"Conv2D", "Conv3D", "declared.BroadcastGradientArgs"}
"""TensorFlow ends the process in the backward pass of some shapes, also on one device; `table_programs.py` has others. The
axes of a broadcast gradient are not unique, and a gradient computes with them."""


@functools.cache
def operations() -> list[str]:
    """The names of the operations that a step may have: of `tf.raw_ops`, of `keras.ops`, and of `declared_calls.py`."""
    found = [name for name in dir(tf.raw_ops) if _is_of_steps(name)] + KERAS_OPERATIONS
    return [name for name in found if name not in UNUSABLE] + [f"declared.{name}" for name in DECLARED]


@functools.cache
def drawings_of_rows() -> dict[str, str]:
    """The operation that is drawn for each row; a row without one is missing."""
    named = {name.removeprefix("declared."): name for name in operations() if not name.startswith("keras.")}
    return {kind: named[kind] for kind in ROWS if kind in named}


def _is_of_steps(name: str) -> bool:
    found = None if name.startswith("_") else definition(name)
    if (
        found is None
        or found.is_stateful
        or NO_STEPS.match(name)
        or name in OTHERS.split()
        or name in UNUSABLE
    ):
        return False
    tensors = [*found.input_arg, *found.output_arg]
    handles = (tf.resource.as_datatype_enum, tf.variant.as_datatype_enum)
    if any(each.type in handles or each.is_ref for each in tensors) or found.HasField("deprecation"):
        return False
    return bool(found.input_arg and found.output_arg) and not any("func" in each.type for each in found.attr)


def draw(operation: str, seed: int) -> Case | str:
    """A program that begins with an operation and that one device can compute; or why none was found."""
    stream, reason = random.Random(f"{operation} {seed}"), ""
    for _ in range(ATTEMPTS):
        try:
            alone = Case((draw_step(operation, stream),))
            if not any(each.source != "constant" for each in alone.arguments()):
                raise NoCall("nothing depends on the batch")
            _run(alone)
        except Exception as error:  # whatever a wrong call raises
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"
            continue
        return _composed(alone.steps[0], stream) or alone
    return reason


def draw_step(operation: str, stream: random.Random) -> Step:
    """A call of an operation."""
    if not operation.startswith("declared."):
        kind = KerasDrawing if operation.startswith("keras.") else Drawing
        return kind(operation, stream).step()
    shape = stream.choice([("n", 3), ("n", 2, 3), ("n",), (3, "n"), ("2n", 2), (2, 3)])
    source = "batch" if any(isinstance(each, str) for each in shape) else "sum"
    dtype = stream.choice(["float64", "float64", "float32"])
    given = Argument(
        source, shape, dtype, stream.choice(["normal"] * 4 + ["special"]), stream.randrange(10**6)
    )
    choices = DECLARED[operation.removeprefix("declared.")].choices
    chosen = tuple((name, stream.choice(values)) for name, values in choices.items())
    return Step(operation, (("x", given),), chosen)


def _run(case: Case) -> list[Any]:
    return case(tf.constant(case.samples(5)))


def _composed(step: Step, stream: random.Random) -> Case | None:
    for _ in range(8):
        try:
            case = draw_program(step, stream, COMMON)
            case = dataclasses.replace(case, context=stream.choice(["", "", "", "", *CONTEXTS]))
            if not NO_GRADIENT.isdisjoint(each.operation for each in case.steps):
                case = dataclasses.replace(case, gradient="")
            try:
                _run(case)
            except LookupError:  # there is no gradient
                case = dataclasses.replace(case, gradient="")
                _run(case)
        except Exception:  # another operation cannot take this result
            continue
        return case
    return None


COMMON = """
    AddV2 Mul Sub RealDiv Maximum MatMul BatchMatMulV2 Sum Mean Max Prod Cumsum Reshape Transpose ConcatV2 Pack Slice
    StridedSlice GatherV2 GatherNd Pad PadV2 Tile BroadcastTo ExpandDims Squeeze Split Softmax LogSoftmax Cast Select
    SelectV2 UnsortedSegmentSum ScatterNd TensorScatterAdd OneHot ArgMax TopKV2 Where Neg ReverseV2 Roll Relu Tanh Exp
    Log Square Sqrt Greater Minimum LogicalNot Shape Size ZerosLike OnesLike MatrixDiagPart MatrixBandPart Einsum L2Loss
    Conv2D AvgPool MaxPool BiasAdd SpaceToBatchND Bincount SegmentSum DynamicPartition IdentityN Sign IsFinite ClipByValue
""".split()  # noqa: SIM905


def program(case: Case, sizes: Sequence[int] = SIZES) -> Program:
    """A case with its batches."""
    return Program(case, {size: [case.samples(size)] for size in sizes}, case.narrowest)


def examine(cases: Sequence[Case], sizes: Sequence[int] = SIZES, quick: bool = False) -> Iterator[Outcome]:
    """What becomes of each case."""
    for first in range(0, len(cases), TOGETHER):
        with np.errstate(all="ignore"):
            yield from examine_all([program(case, sizes) for case in cases[first : first + TOGETHER]], quick)


def report(case: Case, outcome: Outcome) -> str:
    """A failing case, made smaller, and the command that runs it again."""

    def fails_alike(candidate: Case) -> Outcome | None:
        (found,) = examine([candidate])
        return found if found.kind == outcome.kind else None

    case, outcome = smaller(case, outcome, fails_alike)
    return f'{outcome}\n    {COMMAND} --case "{case}"'


def main(words: Sequence[str] | None = None) -> int:
    """Returns 1 if a program is wrong, or fails on replicas."""
    arguments = _parser().parse_args(words)
    if arguments.case:
        case = read(arguments.case)
        (outcome,) = examine([case])
        print(outcome if arguments.keep or outcome.kind not in DEFECTS else report(case, outcome))
        return int(outcome.kind in DEFECTS)
    names = [name for name in operations() if not arguments.only or name in arguments.only]
    first, _, last = arguments.seeds.partition(":")
    statement = Statement()
    if arguments.cases:
        number = random.SystemRandom().randrange(10**9) if arguments.seed is None else arguments.seed
        print(f"--cases {arguments.cases} --seed {number}", flush=True)
        _draw_rows(statement, number, arguments.cases, None if arguments.keep else report)
        print(statement)
        return int(any(statement.counts[kind] for kind in DEFECTS))
    for seed in range(int(first), int(last or int(first) + 1)):
        for group in _groups(names, 6 * TOGETHER):
            statement.add(group, seed, None if arguments.keep else report)
    print(statement)
    return int(any(statement.counts[kind] for kind in DEFECTS))


def _draw_rows(statement: Statement, seed: int, count: int, report: Any) -> None:
    """Examines so many cases of rows, each row as often as the others."""
    rows, stream = sorted(drawings_of_rows().values()), random.Random(seed)
    for first in range(0, count, len(rows)):
        stream.shuffle(rows)
        drawn = rows[: count - first]
        drawn.sort(
            key=lambda name: name.startswith("declared.")
        )  # what a step rejects is in a graph of its own
        for group in _groups(drawn, 6 * TOGETHER):
            statement.add(group, stream.randrange(10**9), report, quick=True)


def read(text: str) -> Case:
    """A case from its text."""
    return eval(text, {"Case": Case, "Step": Step, "Argument": Argument})


def _groups(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (names[first : first + size] for first in range(0, len(names), size))


class Statement:
    """Counts what became of the programs."""

    def __init__(self) -> None:
        self.counts = collections.Counter[str]()
        self.covered: set[str] = set()
        self.missed: dict[str, str] = {}
        self.reasons = collections.Counter[str]()

    def add(self, names: Iterable[str], seed: int, report: Any = None, quick: bool = False) -> None:
        """Examines a program of each operation."""
        drawn = {name: draw(name, seed) for name in names}
        self.missed |= {name: case for name, case in drawn.items() if isinstance(case, str)}
        cases = {name: case for name, case in drawn.items() if isinstance(case, Case)}
        outcomes = examine(list(cases.values()), QUICK_SIZES if quick else SIZES, quick)
        for (name, case), outcome in zip(cases.items(), outcomes):
            self.counts[outcome.kind] += 1
            if outcome.kind == "not covered":
                self.missed[name] = outcome.details
                continue
            self.covered.add(name)
            if outcome.kind == "rejected":
                self.reasons[re.sub(r"\(.*|\d+", "", outcome.details)] += 1
            if outcome.kind in DEFECTS:
                print(f"{name} {seed}: {report(case, outcome) if report else outcome}", flush=True)

    def __str__(self) -> str:
        missed = sorted(set(self.missed) - self.covered)
        counts = ", ".join(f"{self.counts[kind]} {kind}" for kind in KINDS if kind != "not covered")
        lines = [f"{len(self.covered)} operations of {len(self.covered) + len(missed)}: {counts}"]
        lines += [f"rejected {number} times: {reason}" for reason, number in self.reasons.most_common()]
        return "\n".join([*lines, f"not covered: {' '.join(missed)}"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(COMMAND, description=__doc__)
    parser.add_argument("--seeds", default="0:1", metavar="FIRST:END", help="the seeds of each operation")
    parser.add_argument(
        "--cases", type=int, help="so many cases of the operations with a row, from random seeds"
    )
    parser.add_argument("--seed", type=int, help="the seed of `--cases`, as it was printed")
    parser.add_argument("--only", nargs="+", metavar="OPERATION", help="these operations alone")
    parser.add_argument("--case", help='a case as it was printed: "Case(...)"')
    parser.add_argument("--keep", action="store_true", help="do not make failing programs smaller")
    return parser


if __name__ == "__main__":
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
    as_for_users(False)
    tf.get_logger().setLevel("ERROR")
    sys.exit(main())
