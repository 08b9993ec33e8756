"""Compares `simulate_scaling` with measured steps of up to four workers whose links are slowed down."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

FIRST_PORT, WIDTH, LAYERS, SAMPLES, STEPS, WARM_UP = 23450, 512, 6, 32, 10, 4


def main() -> int:
    """Prints a table; `--child` runs one worker, `--inside` the parent in its network namespace.

        python -m benchmarks.scaling_check [--mbyte 20]

    Each worker is a process that trains with `fit` under `MultiWorkerMirroredStrategy`. Linux `tc` limits the bytes
    per second that its port sends, in a separate network namespace. The processes share the cores of this machine, so
    the step without all-reduce is measured with as many processes at the same time.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--mbyte", type=float, default=20.0, help="10**6 bytes per second that a worker sends"
    )
    parser.add_argument("--workers", type=int, default=4, help="numbers of workers")
    parser.add_argument("--inside", action="store_true")
    parser.add_argument("--child", action="store_true")
    o = parser.parse_args()
    if o.child:
        print(json.dumps(train()), flush=True)
        return 0
    if not o.inside:
        return subprocess.call(
            ["unshare", "-rn", sys.executable, "-m", __spec__.name, *sys.argv[1:], "--inside"]
        )
    limit_links(o.mbyte * 1e6, o.workers)
    from benchmarks.tables import publish
    from unisono.distribute import simulate_scaling

    rows = []
    for workers in range(1, o.workers + 1):
        alone, size = run(workers, together=False)
        measured, _ = run(workers, together=True) if workers > 1 else (alone, size)
        [estimate] = simulate_scaling(alone, size, o.mbyte * 1e6, [workers])
        times = [f"{1e3 * seconds:.0f} ms" for seconds in (alone, measured, estimate.step_seconds)]
        rows.append([str(workers), *times, f"{estimate.step_seconds / measured:.2f}"])
    head = ["workers", "step without sums", "measured", "simulated (ring)", "simulated / measured"]
    publish("scaling_check", head, rows)
    return 0


def limit_links(bytes_per_second: float, workers: int) -> None:
    """Limits what each worker's port sends on the loopback interface of this namespace."""
    commands = ["ip link set lo up", "tc qdisc add dev lo root handle 1: htb default 1"]
    commands += ["tc class add dev lo parent 1: classid 1:1 htb rate 100gbit quantum 60000"]
    for worker in range(workers):
        one, port = f"1:{10 + worker}", FIRST_PORT + worker
        rate = f"rate {bytes_per_second * 8:.0f}bit burst 128kb cburst 128kb quantum 60000"
        commands += [
            f"tc class add dev lo parent 1: classid {one} htb {rate}",
            f"tc filter add dev lo parent 1: protocol ip u32 match ip sport {port} 0xffff flowid {one}",
        ]
    for command in commands:
        subprocess.run(command.split(), check=True)


def run(workers: int, together: bool) -> tuple[float, float]:
    """The median step in seconds, and the bytes of the gradients; without `together`, each worker trains separately."""
    addresses = [f"127.0.0.1:{FIRST_PORT + worker}" for worker in range(workers)]
    children = []
    for worker in range(workers):
        cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": worker}}
        environment = {**os.environ, **({"TF_CONFIG": json.dumps(cluster)} if together else {})}
        command = [sys.executable, "-m", __spec__.name, "--child"]
        children.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        )
    try:
        found = [json.loads(child.communicate(timeout=600)[0].splitlines()[-1]) for child in children]
    finally:
        for child in children:  # if one fails or hangs, the others wait for it
            child.kill()
    return statistics.median(one["seconds"] for one in found), found[0]["bytes"]


def train() -> dict[str, float]:
    """Times the steps of one worker."""
    import contextlib

    import keras
    import numpy as np
    import tensorflow as tf

    import unisono

    config = os.environ.get("TF_CONFIG")
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if config else None
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = unisono.Sequential([keras.Input((WIDTH,))])
        for _ in range(LAYERS):
            model.add(keras.layers.Dense(WIDTH, "relu"))
        model.compile("sgd", "mse", jit_compile=False, steps_per_execution=1)
    x = np.zeros((SAMPLES * 4, WIDTH), "float32")
    times: list[float] = []

    class Clock(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            times.append(time.perf_counter())

    batch_size = SAMPLES * (json.loads(config)["cluster"]["worker"].__len__() if config else 1)
    data = tf.data.Dataset.from_tensor_slices((x, x)).repeat().batch(batch_size, drop_remainder=True)
    model.fit(data, steps_per_epoch=WARM_UP + STEPS, callbacks=[Clock()], verbose=0)
    seconds = (times[-1] - times[WARM_UP - 1]) / STEPS
    return {"seconds": seconds, "bytes": 4.0 * sum(int(np.prod(v.shape)) for v in model.trainable_variables)}


if __name__ == "__main__":
    raise SystemExit(main())
