"""Step times on the first GPU, of an MLP, a ResNet-50, a GPT-2-small and a BERT-base in four precisions.

    python -m benchmarks.gpu [--models mlp,gpt2] [--precisions tf32,float16] [--ways ours,loop] [--minutes 10] [--out bench]

Writes `gpu.md` (a table) and `gpu.json`. Unisono's fit is compared with a loop by hand in TensorFlow, Keras' fit, and loops
by hand in PyTorch and JAX where these are installed. `--tiny` trains small models, on a CPU too, to see that all of it runs.
"""

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
from .task import MODELS, PRECISIONS, WAYS

_NEEDS = {"torch": "torch", "jax": "jax"}


def main() -> int:
    """Measures and writes; returns 1 where nothing can be measured."""
    o = _arguments()
    ways = [way for way in o.ways if way not in _NEEDS or importlib.util.find_spec(_NEEDS[way])]
    gpus = _gpus()
    print(
        f"GPU: {gpus[0] if gpus else 'none'}. Left out, not installed: {', '.join(set(o.ways) - set(ways)) or 'none'}."
    )
    print(
        f"This needs about 16 GiB of the GPU's memory and {o.minutes:g} minutes, and nothing else running on it."
    )
    if not gpus and not o.tiny:
        print("There is no GPU: --tiny runs small models on the CPU.", file=sys.stderr)
        return 1
    out = pathlib.Path(o.out)
    out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + 60 * o.minutes
    pairs = [(model, way) for model in o.models for way in ways]
    results: list[dict[str, Any]] = []
    for number, (model, way) in enumerate(pairs):
        share = max(5.0, (until - time.monotonic()) / (len(pairs) - number))
        results += _measured(model, way, o.precisions, o.tiny, share)
        text = page(results, gpus[0] if gpus else "the CPU", o.tiny)
        (out / "gpu.md").write_text(text, encoding="utf-8")
        (out / "gpu.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    print(text)
    print(f"Written to {out / 'gpu.md'} and {out / 'gpu.json'}.")
    return 0


def _measured(
    model: str, way: str, precisions: list[str], tiny: bool, seconds: float
) -> list[dict[str, Any]]:
    """The answers of one process; for precisions that it did not come to, why."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu.one",
        way,
        model,
        ",".join(precisions),
        f"--seconds={seconds}",
    ]
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}
    environment["KERAS_BACKEND"] = "jax" if way == "jax" else "tensorflow"
    if way == "jax":
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
        {"way": way, "model": model, "precision": p, "failed": last} for p in precisions if p not in there
    ]
    print(f"{model:9} {way:6} {time.monotonic() - began:5.0f} s", flush=True)
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

    parser.add_argument("--models", type=some(MODELS), default=list(MODELS))
    parser.add_argument("--precisions", type=some(PRECISIONS), default=list(PRECISIONS))
    parser.add_argument("--ways", type=some(WAYS), default=list(WAYS))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--out", default="bench")
    parser.add_argument("--tiny", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
