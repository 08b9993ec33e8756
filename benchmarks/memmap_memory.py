"""Trains from a file four times larger than the process' memory limit, and checks that it stays below the limit."""

from __future__ import annotations

import os
import pathlib
import resource
import subprocess
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

COLUMNS = 1024
MIB = 2**20


def write(path: pathlib.Path, size: int) -> int:
    """Writes a file of `size` bytes of float32 numbers, part by part; returns its number of samples."""
    import numpy as np

    samples = size // (4 * COLUMNS)
    file = np.lib.format.open_memmap(path, mode="w+", dtype="float32", shape=(samples, COLUMNS))
    part = np.random.default_rng(0).random((4096, COLUMNS), dtype=np.float32)
    for start in range(0, samples, len(part)):
        file[start : start + len(part)] = part[: len(file[start : start + len(part)])]
    file.flush()
    return samples


def status(name: str) -> int:
    """Bytes of this process: `RssAnon` is anonymous memory in use, `VmData` counts towards the limit."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {name}")


def child(path: str, limit: int, read_all: bool) -> None:
    """Trains under the limit."""
    import keras
    import numpy as np

    import unisono

    x = np.load(path, mmap_mode="r")
    y = np.zeros((len(x), 1), "float32")
    model = unisono.Sequential([keras.Input((COLUMNS,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    model.fit(x[:640], y[:640], batch_size=64, verbose=0)  # libraries allocate once; the limit is for data
    before = status("RssAnon")
    data = status("VmData")
    resource.setrlimit(resource.RLIMIT_DATA, (data + limit, data + limit))
    if read_all:
        x = np.array(x)
    peak = [before]

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            peak[0] = max(peak[0], status("RssAnon"))

    model.fit(x, y, batch_size=64, epochs=1, shuffle=True, verbose=0, callbacks=[Watch()])
    print(f"samples {len(x)}, file {os.path.getsize(path) // MIB} MiB, used {(peak[0] - before) // MIB} MiB")


def main(limit_mib: int = 256) -> None:
    """Writes the file and runs both child processes: `python -m benchmarks.memmap_memory [LIMIT_MIB]` (Linux only).

    A child limits its own anonymous memory (`RLIMIT_DATA`: allocations, not mapped files), then trains one epoch from
    an `np.memmap`. A second child reads the whole file first and must die of a `MemoryError`, which proves that the
    limit works.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "x.npy"
        write(path, 4 * limit_mib * MIB)
        for read_all in (False, True):
            command = [
                sys.executable,
                __file__,
                "--child",
                str(path),
                str(limit_mib * MIB),
                str(int(read_all)),
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
            how = "read into memory first" if read_all else "memory-mapped"
            said = done.stdout.strip().splitlines()[-1:] or done.stderr.strip().splitlines()[-1:]
            print(
                f"limit {limit_mib} MiB, {how}: exit status {done.returncode}: {' '.join(said)}", flush=True
            )
            if (done.returncode == 0) == read_all:
                raise SystemExit(done.stderr[-2000:] or "the limit had no effect")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], int(sys.argv[3]), bool(int(sys.argv[4])))
    else:
        main(*(int(argument) for argument in sys.argv[1:]))
