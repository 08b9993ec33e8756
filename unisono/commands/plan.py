"""`python -m unisono plan`: what a training needs to fit into the memory of its devices, before anything is rented."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .parser import Parser

if TYPE_CHECKING:
    from ..distribute.memory_plan import MemoryPlan, ModelMemory

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_HELP = """
A model is traced, not made: one of 100 GB can be planned on a laptop. What is counted are weights, gradients, the
optimizer's slots, and the activations that the backward pass waits for; a tenth is left to kernels and the allocator.
"""


def main(argv: Sequence[str]) -> int:
    """Prints the plans; returns 0 if the training fits in some way, 1 if in none, 2 for what cannot be read."""
    options = _parser().parse_args(argv)
    # Imports no TensorFlow, but its package's arguments NumPy.
    from ..distribute.memory_plan import memory_plans
    from .planned_model import read_model

    try:
        memory = smallest_memory() if options.memory is None else options.memory
        model = read_model(options.model)
        plans = memory_plans(model, memory, options.batch_size, options.devices)
    except (ImportError, OSError, TypeError, ValueError) as error:
        print(f"unisono plan: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(as_text(options.model, model, plans, memory, options.batch_size, options.devices))
    return 0 if any(plan.fits for plan in plans) else 1


def _parser() -> Parser:
    parser = Parser(
        prog="python -m unisono plan",
        description="Say which of accumulation, sharded state, half precision and a pipeline a training needs.",
        epilog=_HELP,
    )
    add = parser.add_argument
    model_help = "a .keras file; or FILE.py:FUNCTION or MODULE:FUNCTION, which returns model, (model, x) or (model, x, y)"
    add("model", help=model_help)
    add("-b", "--batch-size", type=_count, required=True, metavar="ROWS", help="rows of the global batch")
    add("-n", "--devices", type=_count, default=1, metavar="N", help="how many, in all machines (default 1)")
    memory_help = (
        "of one device, as 80GiB; G, M and K are powers of 1024 (default: that of this machine's GPUs)"
    )
    add("-m", "--memory", type=_bytes, metavar="SIZE", help=memory_help)
    return parser


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to 10^18, received {text[:40]!r}")
    return int(text)


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", text.strip(), re.IGNORECASE)
    size = 0 if found is None else float(found[1]) * _UNITS[found[2].upper()]
    if not 1 <= size < 2**63:
        raise argparse.ArgumentTypeError(f"must be a size such as 24GiB or 500MiB, received {text!r}")
    return int(size)


def smallest_memory() -> int:
    """Bytes of the smallest GPU of this machine.

    Raises:
        ValueError: there is none.
    """
    import tensorflow as tf

    from ..distribute.memory import PeakMemory

    gpus = [f"GPU:{index}" for index, _ in enumerate(tf.config.list_logical_devices("GPU"))]
    if not gpus:
        raise ValueError(
            "this machine has no GPU whose memory could be taken: give that of a device, as --memory 24GiB"
        )
    return PeakMemory(gpus).limit()


def as_text(
    name: str, model: ModelMemory, plans: Sequence[MemoryPlan], memory: float, rows: int, devices: int
) -> str:
    """What is printed: the model, a line for each way to train, and what to put into the program."""
    from ..distribute.gpu_memory import in_words

    precision = "half precision" if model.half_precision else "full precision"
    each = "on one device" if devices == 1 else f"on {devices} devices"
    lines = [
        f"{name}: weights {in_words(model.weights)} ({in_words(model.trained)} trained), slots {in_words(model.slots)}, "
        f"activations {in_words(model.activations)} for each row, in {precision}",
        f"{rows} rows a step {each} of {in_words(memory)}",
        "",
        *_table(plans, memory, in_words),
        "",
    ]
    best = next((plan for plan in plans if plan.fits), None)
    if best is None:
        return "\n".join([*lines, _nothing_fits(plans[0], devices)])
    if not best.remedies:
        return "\n".join([*lines, "It fits as it is."])
    return "\n".join(
        [*lines, "Put this into the program:", "", *(f"    {line}" for line in code_of(best, rows, devices))]
    )


def _table(plans: Sequence[MemoryPlan], memory: float, in_words: Any) -> list[str]:
    kinds = ("weights", "gradients", "slots", "accumulators", "activations", "total")
    cells = [["", *kinds, "of memory"]]
    for plan in plans:
        share = f"{plan.total / memory:.0%}" + ("" if plan.fits else ", too much")
        cells.append([_title(plan), *(in_words(getattr(plan, kind)) for kind in kinds), share])
    widths = [max(map(len, column)) for column in zip(*cells)]
    return [
        "  ".join(
            cell.ljust(width) if not i else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths))
        )
        for row in cells
    ]


def _title(plan: MemoryPlan) -> str:
    parts = [
        f"pipeline of {plan.stages} stages" if plan.stages > 1 else "",
        f"sharded {plan.sharded}" if plan.sharded else "",
        f"accumulation of {plan.accumulation}" if plan.accumulation > 1 else "",
        "half precision" if plan.half_precision else "",
    ]
    return ", ".join(filter(None, parts)) or "as it is"


def _nothing_fits(plain: MemoryPlan, devices: int) -> str:
    if plain.weights + plain.gradients + plain.slots > plain.activations:
        return f"It fits in no way: more than {devices} devices are needed, or freeze weights (LoRA, say)."
    return (
        "It fits in no way: the activations of one row are too many; more devices for a pipeline would help."
    )


def code_of(plan: MemoryPlan, rows: int, devices: int) -> list[str]:
    """The lines of a program that trains by a plan."""
    from ..distribute.memory_plan import micro_batches

    lines = []
    if plan.half_precision:
        lines.append(
            'unisono.mixed_precision.set_global_policy("mixed_bfloat16")  # before the model is made'
        )
    if plan.stages > 1:
        replicas = devices // plan.stages
        several = f", replicas={replicas}" if replicas > 1 else ""
        parts = micro_batches(plan, rows, devices)
        names = ", ".join(f'"GPU:{index}"' for index in range(devices)) if devices <= 8 else "..."
        lines.append(
            f'strategy = unisono.distribute.Pipeline([{names}], micro_batches={parts}, schedule="1f1b"{several})'
        )
        if plan.sharded:
            lines.append(f'unisono.distribute.sharded(strategy, level="{plan.sharded}")')
    elif plan.sharded:
        lines.append(
            f'strategy = unisono.distribute.sharded(unisono.distribute.auto_strategy(), level="{plan.sharded}")'
        )
    elif devices > 1:
        lines.append("strategy = unisono.distribute.auto_strategy()")
    if plan.accumulation > 1:
        lines.append(
            f"optimizer = unisono.optimizers.Adam(..., gradient_accumulation_steps={plan.accumulation})"
        )
        lines.append(
            f"model.fit(..., batch_size={-(-rows // plan.accumulation)})  # an update every {plan.accumulation} steps"
        )
    return lines
