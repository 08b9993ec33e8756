"""Measures step times on the first GPU, of an MLP, a ResNet-50, a GPT-2-small and a BERT-base in four precisions."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import time
from typing import Any

from .table import page
from .task import MODELS, PRECISIONS, TRAINERS

_NEEDS = {"torch": "torch", "jax": "jax"}


def main() -> int:
    """Measures and writes `gpu.md` (a table) and `gpu.json`; returns 1 if nothing can be measured.

        python -m benchmarks.gpu [--models mlp,gpt2] [--precisions tf32,float16] [--trainers ours,loop] [--out bench]

    Unisono's `fit` is compared with a hand-written TensorFlow loop, Keras' `fit`, and hand-written loops in PyTorch
    and JAX, if these are installed. `--tiny` trains small models, also on a CPU, to check that everything runs.
    """
    o = _arguments()
    trainers = [
        trainer
        for trainer in o.trainers
        if trainer not in _NEEDS or importlib.util.find_spec(_NEEDS[trainer])
    ]
    gpus = _gpus()
    left_out = ", ".join(set(o.trainers) - set(trainers)) or "none"
    print(f"GPU: {gpus[0] if gpus else 'none'}. Left out because not installed: {left_out}.")
    print(
        f"This needs about 16 GiB of the GPU's memory and {o.minutes:g} minutes, and nothing else running on it."
    )
    if not gpus and not o.tiny:
        print("There is no GPU: --tiny runs small models on the CPU.", file=sys.stderr)
        return 1
    out = pathlib.Path(o.out)
    out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + 60 * o.minutes
    pairs = [(model, trainer) for model in o.models for trainer in trainers]
    results: list[dict[str, Any]] = []
    for number, (model, trainer) in enumerate(pairs):
        share = max(5.0, (until - time.monotonic()) / (len(pairs) - number))
        results += _measured(model, trainer, o.precisions, o.tiny, share)
        text = page(results, gpus[0] if gpus else "the CPU", o.tiny)
        (out / "gpu.md").write_text(text, encoding="utf-8")
        (out / "gpu.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    print(text)
    print(f"Written to {out / 'gpu.md'} and {out / 'gpu.json'}.")
    return 0


def _measured(
    model: str, trainer: str, precisions: list[str], tiny: bool, seconds: float
) -> list[dict[str, Any]]:
    """The answers of one process; for precisions that it did not reach, the reason."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu.one",
        trainer,
        model,
        ",".join(precisions),
        f"--seconds={seconds}",
    ]
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}
    environment["KERAS_BACKEND"] = "jax" if trainer == "jax" else "tensorflow"
    if trainer == "jax":
        environment["JAX_ENABLE_X64"] = "0"
    began = time.monotonic()
    try:
        done = subprocess.run(
            command + ["--tiny"] * tiny, env=environment, capture_output=True, text=True, timeout=seconds + 30
        )
        output, errors = done.stdout, done.stderr
    except subprocess.TimeoutExpired as error:
        output, errors = (error.stdout or b"").decode(), "no answer in time"
    answers = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    last = (errors.strip().splitlines() or ["it ended without an answer"])[-1][:200]
    there = {answer["precision"] for answer in answers}
    answers += [
        {"trainer": trainer, "model": model, "precision": p, "failed": last}
        for p in precisions
        if p not in there
    ]
    print(f"{model:9} {trainer:6} {time.monotonic() - began:5.0f} s", flush=True)
    return answers


def _gpus() -> list[str]:
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [
        line.partition(":")[2].partition("(")[0].strip()
        for line in listing.splitlines()
        if line[:4] == "GPU "
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)

    def some(names: tuple[str, ...]) -> Any:
        def parse(text: str) -> list[str]:
            chosen = text.split(",")
            unknown = [name for name in chosen if name not in names]
            if unknown:
                raise argparse.ArgumentTypeError(
                    f"unknown: {', '.join(unknown)}; there are {', '.join(names)}"
                )
            return chosen

        return parse

    parser.add_argument(
        "--models", type=some(MODELS), default=list(MODELS), help=f"some of {','.join(MODELS)}"
    )
    parser.add_argument(
        "--precisions",
        type=some(PRECISIONS),
        default=list(PRECISIONS),
        help=f"some of {','.join(PRECISIONS)}",
    )
    parser.add_argument(
        "--trainers", type=some(TRAINERS), default=list(TRAINERS), help=f"some of {','.join(TRAINERS)}"
    )
    parser.add_argument("--minutes", type=float, default=40.0, help="total time, divided among the cells")
    parser.add_argument("--out", default="bench", help="folder for the table and the numbers")
    parser.add_argument("--tiny", action="store_true", help="small models, also on a CPU")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
