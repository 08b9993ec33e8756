"""`python -m unisono profile`: captures a profile of running workers from another process."""

import os
from collections.abc import Sequence
from pathlib import Path

from ..distribute.workers.addresses import listens, split_address
from .parser import Parser, at_least, local

_CONNECT_SECONDS = 5.0
_CHECK = (
    "check that fit runs there with a unisono.callbacks.Profiler that has this port. Of several workers without GPUs, only "
    "worker 0 opens its port."
)
_TOO_LONG = "TensorFlow waits 60 s for a profile, and small steps have many events: pass fewer --seconds."


PARSER = Parser(
    "profile",
    "Capture one profile of running workers. Their fit needs a unisono.callbacks.Profiler with a port.",
    examples=["--service localhost:6009", "--service host1:6009,host2:6010 --log-dir logs --seconds 0.5"],
    exit_codes={0: "a profile of every worker was written", 1: "a worker did not answer"},
)
_add = PARSER.add_argument
_add(
    "--service",
    required=True,
    metavar="HOST:PORT,...",
    help="addresses of the workers' profilers: worker i listens at the port of the callback + i",
)
_add("--log-dir", type=local, default=Path("logs"), metavar="DIR", help="output folder (default: logs)")
seconds = at_least(float, 0.001, 86400)
_add("--seconds", type=seconds, default=1.0, metavar="SECONDS", help="length of profile (default: 1)")


def main(argv: Sequence[str]) -> int:
    """Capture and write the profile; return 0, or 1 if any worker did not answer."""
    options = PARSER.parse_args(argv)
    addresses = [address.strip().removeprefix("grpc://") for address in options.service.split(",")]
    for address in addresses:
        try:
            split_address(address)
        except ValueError as error:
            PARSER.error(f"--service must be HOST:PORT,HOST:PORT,...: {error}")
    PARSER.make_folder("--log-dir", options.log_dir)
    if silent := [address for address in addresses if not listens(address, _CONNECT_SECONDS)]:
        return PARSER.fail(f"nothing listens at {', '.join(silent)}: {_CHECK}", 1)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    service = ",".join(f"grpc://{address}" for address in addresses)
    before = set(options.log_dir.rglob("*.xplane.pb"))
    problem, folder = "", str(options.log_dir.absolute())
    try:  # a second attempt could begin while a worker still writes the first profile
        milliseconds = max(1, int(1000 * options.seconds))
        tf.profiler.experimental.client.trace(service, folder, milliseconds, num_tracing_attempts=1)
    except (tf.errors.OpError, RuntimeError) as error:
        reason = str(getattr(error, "message", error)).strip().splitlines() or [type(error).__name__]
        ended = [address for address in addresses if not listens(address, _CONNECT_SECONDS)]
        why = f"fit has ended at {', '.join(ended)}." if ended else _TOO_LONG
        problem = f"nothing was captured from {', '.join(addresses)} ({reason[0].rstrip('.')}): {why}"
    files = sorted(set(options.log_dir.rglob("*.xplane.pb")) - before)
    if not problem and len(files) < len(addresses):
        problem = f"{len(files)} of {len(addresses)} workers answered: {_CHECK}"
    print(*files, sep="\n", end="\n" if files else "")
    return PARSER.fail(problem, 1) if problem else 0
