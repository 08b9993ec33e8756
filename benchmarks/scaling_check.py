"""Compares a scaling estimate with measured steps of up to four workers whose links are slowed down."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

PORT, LAYERS, SAMPLES, STEPS, WARM_UP = 2222, 6, 32, 20, 4
HOST = "10.9.0.{}"
WIDTH = 512  # a kernel of 1 MiB, which has an all-reduce of its own


def main() -> int:
    """Prints a table; `--child` runs one worker, `--inside` the parent in its network namespace.

        python -m benchmarks.scaling_check [--mbyte 20]

    Each worker is a process that trains with `fit` under `MultiWorkerMirroredStrategy` in a network namespace of its own,
    as on a host of its own. Linux `tc` limits the bytes per second that each sends. The processes share the cores of this
    machine, so the step without all-reduce is measured with as many processes at the same time. The latency is that of
    two workers with layers of 8 units, which send almost nothing.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--mbyte", type=float, default=20.0, help="10**6 bytes per second that a worker sends"
    )
    parser.add_argument("--workers", type=int, default=4, help="numbers of workers")
    parser.add_argument("--width", type=int, default=WIDTH, help="units of each of the six layers")
    parser.add_argument("--inside", action="store_true")
    parser.add_argument("--child", action="store_true")
    o = parser.parse_args()
    if o.child:
        print(json.dumps(train(o.width)), flush=True)
        return 0
    if not o.inside:
        return subprocess.call(
            ["unshare", "-rnm", sys.executable, "-m", __spec__.name, *sys.argv[1:], "--inside"]
        )
    make_hosts(o.mbyte * 1e6, o.workers)
    from benchmarks.scaling_estimate import simulate_scaling
    from benchmarks.tables import publish

    small, _ = run(2, 8, together=True)
    latency = max(0.0, small - run(2, 8, together=False)[0]) / 2  # of two messages, with one collective
    rows = []
    for workers in range(1, o.workers + 1):
        alone, size = run(workers, WIDTH, together=False)
        measured, _ = run(workers, WIDTH, together=True) if workers > 1 else (alone, size)
        [estimate] = simulate_scaling(
            alone, size, o.mbyte * 1e6, [workers], latency=latency, collectives=LAYERS + 1
        )
        times = [f"{1e3 * seconds:.0f} ms" for seconds in (alone, measured, estimate.step_seconds)]
        rows.append([str(workers), *times, f"{estimate.step_seconds / measured:.2f}"])
    print(f"latency {1e3 * latency:.1f} ms, load {os.getloadavg()[0]:.1f}", flush=True)
    head = ["workers", "step without sums", "measured", "predicted (ring)", "predicted / measured"]
    publish("scaling_check", head, rows)
    return 0


def make_hosts(bytes_per_second: float, workers: int) -> None:
    """Makes a namespace for each worker, `host0` and so on, all on one bridge, and limits what each sends."""
    commands = ["mount -t tmpfs none /run", "ip link add bridge type bridge", "ip link set bridge up"]
    for worker in range(workers):
        host, port = f"host{worker}", f"port{worker}"
        commands += [
            f"ip netns add {host}",
            f"ip link add {port} type veth peer name eth0 netns {host}",
            f"ip link set {port} master bridge up",
            f"ip -n {host} addr add {HOST.format(worker + 1)}/24 dev eth0",
            f"ip -n {host} link set eth0 up",
            f"ip -n {host} link set lo up",
        ]
        if bytes_per_second:
            rate = f"rate {bytes_per_second * 8:.0f}bit burst 128kb cburst 128kb quantum 60000"
            commands += [
                f"ip netns exec {host} tc qdisc add dev eth0 root handle 1: htb default 1",
                f"ip netns exec {host} tc class add dev eth0 parent 1: classid 1:1 htb {rate}",
            ]
    for command in commands:
        subprocess.run(command.split(), check=True)


def run(workers: int, width: int, together: bool) -> tuple[float, float]:
    """The median step in seconds, and the bytes of the gradients; without `together`, each worker trains separately."""
    addresses = [f"{HOST.format(worker + 1)}:{PORT}" for worker in range(workers)]
    children = []
    for worker in range(workers):
        cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": worker}}
        environment = {**os.environ, **({"TF_CONFIG": json.dumps(cluster)} if together else {})}
        command = ["ip", "netns", "exec", f"host{worker}", sys.executable, "-m", __spec__.name]
        command += ["--child", "--width", str(width)]
        children.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        )
    try:
        found = [json.loads(child.communicate(timeout=600)[0].splitlines()[-1]) for child in children]
    finally:
        for child in children:  # if one fails or hangs, the others wait for it
            child.kill()
    return statistics.median(one["seconds"] for one in found), found[0]["bytes"]


def train(width: int) -> dict[str, float]:
    """Times the steps of one worker."""
    import contextlib

    import keras
    import numpy as np
    import tensorflow as tf

    import unisono

    config = os.environ.get("TF_CONFIG")
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if config else None
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = unisono.Sequential([keras.Input((width,))])
        for _ in range(LAYERS):
            model.add(keras.layers.Dense(width, "relu"))
        model.compile("sgd", "mse", jit_compile=False, steps_per_execution=1)
    x = np.zeros((SAMPLES * 4, width), "float32")
    times: list[float] = []

    class Clock(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            times.append(time.perf_counter())

    batch_size = SAMPLES * (json.loads(config)["cluster"]["worker"].__len__() if config else 1)
    data = tf.data.Dataset.from_tensor_slices((x, x)).repeat().batch(batch_size, drop_remainder=True)
    model.fit(data, steps_per_epoch=WARM_UP + STEPS, callbacks=[Clock()], verbose=0)
    steps = [end - begin for begin, end in itertools.pairwise(times[WARM_UP - 1 :])]
    seconds = statistics.median(steps)
    return {"seconds": seconds, "bytes": 4.0 * sum(int(np.prod(v.shape)) for v in model.trainable_variables)}


if __name__ == "__main__":
    raise SystemExit(main())
