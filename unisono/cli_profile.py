"""`python -m unisono profile`: a profile of workers that are running, from outside."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str]) -> int:
    """Captures for some seconds and writes the profile.

    Returns:
        0; 1 if a worker could not be reached or nothing was captured.
    """
    parser = argparse.ArgumentParser(
        prog="python -m unisono profile",
        description="Capture one profile of running workers whose fit has a unisono.callbacks.Profiler with a port.",
    )
    parser.add_argument(
        "--service",
        required=True,
        metavar="HOST:PORT,...",
        help="addresses of the workers' profilers: worker i listens at the callback's port + i",
    )
    parser.add_argument("--log-dir", type=Path, default=Path("logs"), help="where to write it (default logs)")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to capture (default 2)")
    options = parser.parse_args(argv)
    addresses = [address.strip().removeprefix("grpc://") for address in options.service.split(",")]
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            parser.error(f"--service must be HOST:PORT,HOST:PORT,... Received: {address!r}")
    if not options.seconds > 0:
        parser.error(f"--seconds must be more than 0. Received: {options.seconds:g}")
    return _capture(addresses, options.log_dir, options.seconds)


def _capture(addresses: list[str], log_dir: Path, seconds: float) -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    service = ",".join(f"grpc://{address}" for address in addresses)
    before = set(log_dir.rglob("*.xplane.pb"))
    try:
        tf.profiler.experimental.client.trace(service, str(log_dir.absolute()), int(1000 * seconds))
    except tf.errors.OpError as error:
        reason = str(error.message).strip().splitlines() or [type(error).__name__]
        print(
            f"unisono profile: nothing was captured from {', '.join(addresses)}: {reason[0]}", file=sys.stderr
        )
        return 1
    files = sorted(set(log_dir.rglob("*.xplane.pb")) - before)
    if len(files) < len(addresses):
        print(
            f"unisono profile: {len(files)} of {len(addresses)} workers answered: see that each is at work in fit, with "
            f"a Profiler that has a port, and that the ports are right.",
            file=sys.stderr,
        )
    for file in files:
        print(file)
    return 0 if files and len(files) >= len(addresses) else 1
