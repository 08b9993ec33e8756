"""`python -m unisono profile`: captures a profile of running workers from another process."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ..distribute.workers.addresses import listens, split_address
from .parser import Parser, at_least, local

_CONNECT_SECONDS = 5.0


def main(argv: Sequence[str]) -> int:
    """Captures and writes the profile; returns 0, or 1 if any worker did not answer."""
    parser = Parser(
        prog="python -m unisono profile",
        description="Capture one profile of running workers. Their fit needs a unisono.callbacks.Profiler with a port.",
    )
    parser.add_argument(
        "--service",
        required=True,
        metavar="HOST:PORT,...",
        help="addresses of the workers' profilers: worker i listens at the port of the callback + i",
    )
    parser.add_argument(
        "--log-dir", type=local, default=Path("logs"), help="where to write it (default: logs)"
    )
    seconds = at_least(float, 0.001, 86400)
    parser.add_argument("--seconds", type=seconds, default=2.0, help="how long to capture (default: 2)")
    options = parser.parse_args(argv)
    addresses = [address.strip().removeprefix("grpc://") for address in options.service.split(",")]
    for address in addresses:
        try:
            split_address(address)
        except ValueError as error:
            parser.error(f"--service must be HOST:PORT,HOST:PORT,...: {error}")
    parser.make_folder("--log-dir", options.log_dir)
    silent = [address for address in addresses if not listens(address, _CONNECT_SECONDS)]
    if silent:
        print(
            f"unisono profile: nobody listens at {', '.join(silent)}: check that fit runs there with a "
            "unisono.callbacks.Profiler that has this port.",
            file=sys.stderr,
        )
        return 1
    return _capture(addresses, options.log_dir, options.seconds)


def _capture(addresses: list[str], log_dir: Path, seconds: float) -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    service = ",".join(f"grpc://{address}" for address in addresses)
    before = set(log_dir.rglob("*.xplane.pb"))
    problem = ""
    try:
        tf.profiler.experimental.client.trace(service, str(log_dir.absolute()), int(1000 * seconds))
    except tf.errors.OpError as error:
        reason = str(error.message).strip().splitlines() or [type(error).__name__]
        problem = f"nothing was captured from {', '.join(addresses)}: {reason[0]}"
    files = sorted(set(log_dir.rglob("*.xplane.pb")) - before)
    if not problem and len(files) < len(addresses):
        problem = (
            f"{len(files)} of {len(addresses)} workers answered: check that each is running fit with a Profiler that "
            "has a port, and that the ports are right."
        )
    print(*files, sep="\n", end="\n" if files else "")
    if problem:
        print(f"unisono profile: {problem}", file=sys.stderr)
    return int(bool(problem))
