"""A coordinator without TensorFlow: kills its worker and waits for the next one, then kills its parameter server."""

import contextlib
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

CLUSTER = json.loads(os.environ["TF_CONFIG"])["cluster"]


def process_of(kind):
    """The process id of task 0 of a kind, once it listens."""
    address = CLUSTER[kind][0]
    host, port = address.split(":")
    marks = [f'"task": {{"type": "{kind}", "index": 0}}'.encode(), address.encode()]
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            time.sleep(0.1)
            continue
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended in between, or belongs to somebody else
                if all(mark in (process / "environ").read_bytes() for mark in marks):
                    return int(process.name)
    raise TimeoutError(kind)


if os.environ["UNISONO_RESTART"] == "1":
    sys.exit()
server, worker = process_of("ps"), process_of("worker")
os.kill(worker, signal.SIGKILL)
time.sleep(0.1)
print(
    "another worker",
    process_of("worker") != worker,
    "the same server",
    process_of("ps") == server,
    flush=True,
)
os.kill(server, signal.SIGKILL)
time.sleep(60)
