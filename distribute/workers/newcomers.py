"""Machines that join an elastic run while it trains: worker 0 hears them at the endpoint."""

import contextlib
import os
import socket
import time
from typing import Any

import tensorflow as tf

from ..environment import ELASTIC
from .agreement import gather_numbers
from .lines import ASK, hear_line, tell
from .ticker import Ticker

_TICK = 1.0
_waits = False  # whether worker 0, in this process, has heard one


def hear_newcomers(listener: socket.socket, mine: dict[str, Any], full: bool) -> Ticker:
    """Answer at the endpoint, in a thread, for as long as this process runs. `full`: the run takes no more machines."""
    listener.settimeout(_TICK)

    def hear() -> bool:
        global _waits
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                said = hear_line(connection, bytearray(), time.monotonic() + ASK)
                if all(said.get(each) == mine[each] for each in ("unisono", "cluster", "program")):
                    _waits = not full
                    tell(connection, {"wait": True})
                elif "unisono" in said:
                    cure = "stop it, or start the same script with the same --nnodes and --nproc-per-node"
                    tell(connection, {"error": f"another run uses this endpoint: {cure}."})
        return True

    ticker = Ticker("newcomers", hear, 0.0)
    ticker.start()
    return ticker


def newcomer_waits(strategy: tf.distribute.Strategy) -> bool:
    """Return whether a machine waits to join an elastic run. All workers ask, at the same step."""
    return ELASTIC in os.environ and any(row[0] for row in gather_numbers([float(_waits)], strategy))
