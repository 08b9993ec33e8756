"""`python -m unisono plan`: what a training run needs to fit into the memory of its devices, before anything is rented."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import runpy
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .parser import Parser, at_least, columns

if TYPE_CHECKING:
    from ..distribute.hardware.memory_plan import MemoryPlan, ModelMemory

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_MOST_BYTES = 1 << 28  # of a model's configuration
_COUNT = at_least(int, 1, 1e18)


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", text.strip(), re.IGNORECASE)
    size = 0 if found is None else float(found[1]) * _UNITS[found[2].upper()]
    if not 1 <= size < 2**63:
        raise argparse.ArgumentTypeError(f"must be a size such as 24GiB or 500MiB, received {text!r}")
    return int(size)


PARSER = Parser(
    "plan",
    "Estimate memory, and the accumulation, sharding, half precision or pipeline that a training run needs.",
    examples=["model.py:make_model -b 64 -n 8 -m 80GiB", "model.keras -b 256"],
    exit_codes={
        0: "the training run fits, perhaps with changes",
        1: "nothing makes it fit",
        2: "an argument is wrong, or the model cannot be read",
    },
    details="""\
A model is traced, not created: one of 100 GB can be planned on a laptop. The plan counts weights, gradients, the optimizer's
state, and the activations that the backward pass needs. A tenth of the memory is left to kernels and the allocator.""",
)
_add = PARSER.add_argument
_add(
    "model",
    help="a .keras file; or FILE.py:FUNCTION or MODULE:FUNCTION, which returns model, (model, x) or (model, x, y)",
)
_add("-b", "--batch-size", type=_COUNT, required=True, metavar="N", help="samples of the global batch")
_add("-n", "--devices", type=_COUNT, default=1, metavar="N", help="devices, in all machines (default: 1)")
_add(
    "-m",
    "--memory",
    type=_bytes,
    metavar="SIZE",
    help="memory of one device, as 80GiB; G, M and K are powers of 1024 (default: that of this machine's GPUs)",
)


def main(argv: Sequence[str]) -> int:
    """Prints the plans; returns 0 if one fits, 1 if none does, 2 for a model that cannot be read."""
    options = PARSER.parse_args(argv)
    from ..distribute.hardware.memory_plan import (
        memory_plans,  # imports NumPy, which `--help` need not wait for
    )

    try:
        memory = smallest_memory() if options.memory is None else options.memory
        model = read_model(options.model)
        plans = memory_plans(model, memory, options.batch_size, options.devices)
    except (ImportError, OSError, TypeError, ValueError) as error:
        return PARSER.failed(" ".join(str(error).split()), 2)
    print(as_text(options.model, model, plans, memory, options.batch_size, options.devices))
    return 0 if any(plan.fits for plan in plans) else 1


def read_model(place: str) -> ModelMemory:
    """The memory of the model in a `.keras` file, whose weights are not read, or of the one that a function returns."""
    import keras

    from ..compat.tensorflow_private.valueless_variables import variables_without_memory
    from ..trainer.model_memory import model_memory

    with variables_without_memory():
        if place.endswith(".keras"):
            return model_memory(_model_in_file(Path(place)))
        found = _function(place)()
        model, *batch = found if isinstance(found, tuple) else (found,)
        if not isinstance(model, keras.Model) or len(batch) > 2:
            raise ValueError(
                f"{place} must return a Keras model, or (model, x) or (model, x, y). Received: {type(found).__name__}"
            )
        return model_memory(model, *batch)


def _model_in_file(path: Path) -> Any:
    import keras

    _check_is_file(path)
    try:
        with zipfile.ZipFile(path) as archive, archive.open("config.json") as stream:
            text = stream.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise ValueError(f"its configuration has more than {_MOST_BYTES:,} bytes")
        model: Any = keras.saving.deserialize_keras_object(json.loads(text))
        if not isinstance(model, keras.Model):
            raise TypeError(f"it holds a {type(model).__name__}")
    except Exception as error:  # the file may say anything
        raise ValueError(f"{str(path)!r} is no .keras file of a model: {str(error)[:300]!s}") from None
    return model


def _function(place: str) -> Callable[[], Any]:
    source, _, name = place.rpartition(":")
    if not source:
        raise ValueError(
            f"`model` must be a .keras file, FILE.py:FUNCTION or MODULE:FUNCTION. Received: {place!r}"
        )
    path = Path(source)
    if source.endswith(".py"):
        _check_is_file(path)
        sys.path.insert(0, str(path.parent.resolve()))  # what it imports from its folder
        found = runpy.run_path(source, run_name=path.stem).get(name)
    else:
        sys.path.insert(0, str(Path.cwd()))
        found = getattr(importlib.import_module(source), name, None)
    if not callable(found):
        raise ValueError(f"{source} has no function {name!r}")
    return found


def _check_is_file(path: Path) -> None:
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r}")


def smallest_memory() -> int:
    """Bytes of the smallest GPU of this machine; a ValueError without one."""
    import tensorflow as tf

    from ..distribute.hardware.device_memory import PeakMemory

    gpus = [f"GPU:{index}" for index, _ in enumerate(tf.config.list_logical_devices("GPU"))]
    if not gpus:
        raise ValueError(
            "this machine has no GPU whose memory could be taken: give that of a device, as --memory 24GiB"
        )
    return PeakMemory(gpus).limit()


def as_text(
    name: str, model: ModelMemory, plans: Sequence[MemoryPlan], memory: float, samples: int, devices: int
) -> str:
    """What is printed: the model, a line for each plan, and what to put into the program."""
    from ..distribute.hardware.device_memory import in_words

    precision = "half precision" if model.half_precision else "full precision"
    each = "on one device" if devices == 1 else f"on {devices} devices"
    state = in_words(model.optimizer_state)
    kinds = ("weights", "gradients", "optimizer_state", "accumulators", "activations", "total")
    cells = [["", *("state" if kind == "optimizer_state" else kind for kind in kinds), "of memory"]]
    for plan in plans:
        share = f"{plan.total / memory:.0%}" + ("" if plan.fits else ", too much")
        changes = [
            f"pipeline of {plan.stages} stages" if plan.stages > 1 else "",
            f"sharded {plan.sharded}" if plan.sharded else "",
            f"accumulation of {plan.accumulation}" if plan.accumulation > 1 else "",
            "half precision" if plan.half_precision else "",
        ]
        title = ", ".join(filter(None, changes)) or "unchanged"
        cells.append([title, *(in_words(getattr(plan, kind)) for kind in kinds), share])
    lines = [
        f"{name}: weights {in_words(model.weights)} ({in_words(model.trained)} trained), optimizer state "
        f"{state}, activations {in_words(model.activations)} for each sample, in {precision}",
        f"{samples} samples a step {each} of {in_words(memory)}",
        "",
        *columns(cells, str.rjust),
        "",
    ]
    best, plain = next((plan for plan in plans if plan.fits), None), plans[0]
    if best is None and plain.weights + plain.gradients + plain.optimizer_state > plain.activations:
        lines.append(
            f"It does not fit: more than {devices} devices are needed, or freeze weights (LoRA, say)."
        )
    elif best is None:
        lines.append(
            "It does not fit: the activations of one sample are too many; more devices for a pipeline would help."
        )
    elif not best.changes:
        lines.append("It fits without changes.")
    else:
        code = (f"    {line}" for line in code_of(best, samples, devices))
        lines += ["Put this into the program:", "", *code]
    return "\n".join(lines)


def code_of(plan: MemoryPlan, samples: int, devices: int) -> list[str]:
    """The lines of a program that trains by a plan."""
    from ..distribute.hardware.memory_plan import micro_batches

    lines = []
    if plan.half_precision:
        lines.append(
            'unisono.mixed_precision.set_global_policy("mixed_bfloat16")  # before the model is created'
        )
    if plan.stages > 1:
        replicas = devices // plan.stages
        several = f", replicas={replicas}" if replicas > 1 else ""
        parts = micro_batches(plan, samples, devices)
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
            f"model.fit(..., batch_size={-(-samples // plan.accumulation)})  # an update every {plan.accumulation} steps"
        )
    return lines
