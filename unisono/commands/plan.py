"""`python -m unisono plan`: what a training run needs to fit into the memory of its devices, before anything is rented."""

import argparse
import re
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .parser import Parser, at_least, columns

_COUNT = at_least(int, 1, 1e18)


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", text.strip(), re.IGNORECASE)
    size = float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " ") if found else 0
    if not 1 <= size < 2**63:
        raise argparse.ArgumentTypeError(f"must be a size such as 24GiB or 500MiB, received {text!r}")
    return int(size)


PARSER = Parser(
    "plan",
    "Estimate memory, and the accumulation, sharding, half precision or pipeline that a training run needs.",
    examples=["model.py:make_model -b 64 -n 8 -m 80GiB"],
    exit_codes={0: "it fits, perhaps with changes", 1: "nothing makes it fit", 2: "wrong argument or model"},
)
_add = PARSER.add_argument
_add("model", help="FILE.py:FUNCTION, which returns model, (model, x) or (model, x, y)")
_add("-b", "--batch-size", type=_COUNT, required=True, metavar="N", help="samples of the global batch")
_add("-n", "--devices", type=_COUNT, default=1, metavar="N", help="devices, in all machines (default: 1)")
_add("-m", "--memory", type=_bytes, required=True, metavar="SIZE", help="memory of one device, such as 80GiB")


def main(argv: Sequence[str]) -> int:
    """Print the plans; return 0 if one fits, 1 if none does, 2 for a model that cannot be read."""
    options = PARSER.parse_args(argv)
    from .. import distribute
    from ..compat.tensorflow_private.valueless_variables import variables_without_memory
    from ..distribute.hardware.device_memory import in_words
    from ..trainer.model_memory import model_memory

    try:
        with variables_without_memory():
            needed = model_memory(*read_model(options.model))
        plans = distribute.memory_plans(needed, options.memory, options.batch_size, options.devices)
    except Exception as error:  # the function may do anything
        return PARSER.fail(f"cannot plan {options.model!r}: {' '.join(str(error).split())[:300]}", 2)
    kinds = ("weights", "gradients", "optimizer_state", "accumulators", "activations", "total")
    rows = [["", *kinds, "of memory"]]
    for plan in plans:
        share = f"{plan.total / options.memory:.0%}{'' if plan.fits else ', too much'}"
        rows.append([str(plan), *(in_words(getattr(plan, kind)) for kind in kinds), share])
    print("\n".join(columns(rows, str.rjust)))
    if not any(plan.fits for plan in plans):
        print("\nIt does not fit: use more or larger devices, or freeze weights (LoRA, for example).")
    return 0 if any(plan.fits for plan in plans) else 1


def read_model(place: str) -> tuple[Any, ...]:
    """Return what FUNCTION of FILE.py returns, as a tuple."""
    source, _, name = place.rpartition(":")
    if not Path(source).is_file():
        raise ValueError("`model` must be FILE.py:FUNCTION, and the file must exist")
    sys.path.insert(0, str(Path(source).parent.resolve()))  # what it imports from its folder
    found = runpy.run_path(source, run_name=Path(source).stem)[name]()
    return found if isinstance(found, tuple) else (found,)
