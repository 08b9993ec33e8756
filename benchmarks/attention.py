"""Measures what attention in blocks saves: the function alone, and `fit` of a decoder, next to Keras."""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import time
from typing import Any

from .gpu.task import Size
from .sharded_state import forget_peak, memory
from .tables import publish, spread

WORDS, WIDTH, BLOCKS, HEADS = 50_257, 512, 4, 8
KINDS = ("causal", "all keys", "a mask of all queries and keys", "a mask of keys")
CONTESTANTS = {
    "unisono": "Unisono",
    "keras": "Keras",
    "unisono_xla": "Unisono, XLA",
    "keras_xla": "Keras, XLA",
    "jax": "JAX loop",
}
COMPARED = {"unisono": "keras", "keras": "keras"}
"""What a contestant is compared with; the others with `keras_xla`."""
STEP = 2048
"""Tokens of a step of shorter texts."""
MIB = 2**20


def main() -> None:
    """Print two tables; `--child` runs one process of them.

        python -m benchmarks.attention [ROUNDS] [--tokens 128,512,2048,4096] [--words 50257]

    The first has the CPU time of Keras' function, forward and backward, divided by that of blocks: batches of 2, 8 heads of
    64, float32, the best of four in turns. For the second each round starts a process for each contestant, in turns: one
    text a step, or as many as have 2,048 tokens, four blocks, float32. A process runs three steps after the first; the best
    one counts. Memory is the peak of these steps minus what the process had before the first one. All run on one thread, so
    that CPU time is the time of the work. Ratios are of runs in one round: to Keras compiled in the same way, and that of
    the JAX loop, which the extra `bench` brings, to Keras with XLA.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention", description=__doc__)
    parser.add_argument("rounds", nargs="?", type=int, default=1, help="processes of each contestant")
    parser.add_argument("--tokens", default="128,512,2048,4096", help="lengths of a text")
    parser.add_argument("--words", type=int, default=WORDS, help="size of the vocabulary")
    parser.add_argument("--child", choices=["function", "function_xla", *CONTESTANTS], help=argparse.SUPPRESS)
    options = parser.parse_args()
    lengths = [int(each) for each in options.tokens.split(",")]
    if options.child:
        kind, _, xla = options.child.partition("_")
        given = lengths[0], bool(xla)
        found = ratios(*given) if kind == "function" else measure(kind, *given, options.words)
        print(json.dumps(found), flush=True)
        return
    for kind in ("function", "function_xla"):
        rows = [[f"{tokens:,}", *run(kind, tokens, options)] for tokens in lengths]
        publish(f"attention_{kind}", ["tokens", *KINDS], rows)
    head = ["tokens", "", "tokens in a second of CPU time", "of Keras", "peak of a step", "of Keras"]
    publish("attention", head, [line for tokens in lengths for line in lines_of(tokens, options)])


def lines_of(tokens: int, options: Any) -> list[list[str]]:
    """Return a line of the table for each contestant."""
    names = [name for name in CONTESTANTS if name != "jax" or importlib.util.find_spec("jax")]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for _ in range(options.rounds):
        for name in names:
            found[name].append(run(name, tokens, options))
    rows = []
    for name in names:
        pairs = list(zip(found[name], found[COMPARED.get(name, "keras_xla")], strict=True))
        speeds = [texts_of(tokens) * tokens / seconds for seconds, _ in found[name]]
        faster = spread([of_keras / own for (own, _), (of_keras, _) in pairs])
        smaller = spread([own / of_keras for (_, own), (_, of_keras) in pairs])
        peak = f"{spread([peak for _, peak in found[name]], 1 / MIB, '{:,.0f}')} MiB"
        rows.append([f"{tokens:,}", CONTESTANTS[name], spread(speeds, form="{:,.0f}"), faster, peak, smaller])
    return rows


def texts_of(tokens: int) -> int:
    """Return the texts of a step."""
    return max(1, STEP // tokens)


def run(name: str, tokens: int, options: Any) -> Any:
    """Return what a new process has measured."""
    backend = "jax" if name == "jax" else "tensorflow"
    one = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1", "OMP_NUM_THREADS": "1"}
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", "KERAS_BACKEND": backend}
    command = [sys.executable, "-m", "benchmarks.attention", "--child", name, "--tokens", str(tokens)]
    command += ["--words", str(options.words)]
    one["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    env = {**os.environ, **quiet, **one}
    out = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, timeout=1200, check=True)
    return json.loads(out.stdout.splitlines()[-1])


def ratios(tokens: int, xla: bool) -> list[str]:
    """Return for each kind the CPU time of Keras' function, divided by that of blocks."""
    import keras
    import numpy as np
    import tensorflow as tf

    import unisono  # noqa: F401
    from unisono.distribute.step_context import StepContext, step_scope

    drawn = np.random.default_rng(0)
    q, k, v, w = (tf.constant(drawn.normal(size=(2, tokens, HEADS, 64)), "float32") for _ in range(4))
    shapes = {"a mask of all queries and keys": (2, 1, tokens, tokens), "a mask of keys": (2, 1, 1, tokens)}

    def make_timer(flash: bool, kind: str) -> Any:
        mask = tf.constant(drawn.random(shapes[kind]) < 0.8) if kind in shapes else None

        @tf.function(autograph=False, jit_compile=xla)
        def gradients() -> Any:
            with step_scope(StepContext(0, 1, 2, 2)), tf.GradientTape() as tape:
                tape.watch([q, k, v])
                options: Any = {"mask": mask, "is_causal": kind == "causal", "flash_attention": flash}
                loss = tf.reduce_sum(keras.ops.dot_product_attention(q, k, v, **options) * w)
            return tape.gradient(loss, [q, k, v])

        def seconds() -> float:
            began = time.process_time()
            gradients()[0].numpy()
            return time.process_time() - began

        seconds()
        return seconds

    found = []
    for kind in KINDS:
        contestants = [make_timer(False, kind), make_timer(True, kind)]
        plain, blocks = (min(each) for each in zip(*([f() for f in contestants] for _ in range(4))))
        found.append(f"{plain / blocks:.2f}")
    return found


def measure(name: str, tokens: int, xla: bool, vocabulary: int) -> tuple[float, float]:
    """Return the CPU seconds of a step, the best of three, and its peak of memory in bytes."""
    import keras
    import numpy as np

    from .gpu.keras_models import transformer

    model_class: Any = keras.Model
    make_step: Any = None
    if name == "unisono":
        import unisono

        model_class = unisono.Model
    elif name == "jax":
        from .gpu.jax_loop import make_step
    texts = texts_of(tokens)
    inputs, outputs = transformer(Size(texts, (tokens,), vocabulary, WIDTH, (BLOCKS,), HEADS), causal=True)
    model = model_class(inputs, outputs)
    optimizer, loss = (
        keras.optimizers.Adam(1e-4),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    words = np.random.default_rng(0).integers(0, vocabulary, (4 * texts, tokens + 1)).astype("int32")
    before, at = memory("VmRSS"), []

    class Clock(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if not at:
                forget_peak()
            at.append(time.process_time())

    if make_step is not None:
        step = make_step(model, loss, optimizer)
        for each in words.reshape(4, texts, tokens + 1):
            float(step(each[:, :-1], each[:, 1:]))
            Clock().on_train_batch_end(0)
    else:
        model.compile(optimizer, loss, jit_compile=xla)
        options: Any = {"batch_size": texts, "verbose": 0, "callbacks": [Clock()]}
        model.fit(words[:, :-1], words[:, 1:], **options)
    return min(b - a for a, b in itertools.pairwise(at)), memory("VmHWM") - before


if __name__ == "__main__":
    main()
