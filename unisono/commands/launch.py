"""`python -m unisono launch`: the arguments; the work is done in `distribute.launcher`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from ..distribute.environment import LONGEST_TIMEOUT, peer_timeout
from .parser import Parser, at_least, local

_COUNT = at_least(int, 1)


PARSER = Parser(
    "launch",
    "Start N worker processes on this machine, each with TF_CONFIG set, and run a script on them.",
    examples=["--workers 2 train.py", "--workers 4 --restarts 3 --log-dir logs train.py --epochs 10"],
    exit_codes={
        0: "every script ended with 0",
        1: "or another: the status of the script that failed first; 128 + n if signal n ended it",
    },
    details="""Whoever reaches the ports of the processes can run code as you: TensorFlow's servers listen on all
interfaces, and run every graph that they receive. Until the next boot, this rule closes all ports but SSH's to other
machines:

  sudo nft 'table inet unisono { chain input { type filter hook input priority 0;
    iifname != "lo" ct state new tcp dport != 22 drop; }; }'

--network private also closes them to other users of this machine.""",
)
_add = PARSER.add_argument
_add("script", help="the Python file that each worker runs")
_add("arguments", nargs=argparse.REMAINDER, help="the arguments of the script")
_add = PARSER.add_argument_group("processes").add_argument
_add("--workers", type=_COUNT, default=1, metavar="N", help="worker processes (default: 1)")
_add(
    "--replicas-per-worker",
    type=_COUNT,
    metavar="R",
    help="replicas of each worker (default: its share of the GPUs, or one); on the CPU these are logical devices",
)
_add(
    "--parameter-servers",
    type=at_least(int, 0),
    default=0,
    metavar="M",
    help="start M parameter servers; the script then runs on a coordinator, and workers wait for its steps",
)
_add("--stages", type=_COUNT, default=1, metavar="K", help="pipeline stages, one process each")
_add = PARSER.add_argument_group("failures and logs").add_argument
_add(
    "--restarts",
    type=at_least(int, 0),
    default=0,
    metavar="K",
    help="restarts of all processes after a failure, at most (default: 0)",
)
_add("--log-dir", type=local, metavar="DIR", help="write the output of each process to a file in DIR too")
_add(
    "--timeout",
    type=at_least(float, 1, LONGEST_TIMEOUT),
    metavar="SECONDS",
    help="time after which a missing or hanging process is an error (default: UNISONO_TIMEOUT, or 60)",
)
_add(
    "--grace",
    type=at_least(float, 0),
    default=30.0,
    metavar="SECONDS",
    help="time between SIGINT, SIGTERM or SIGHUP and the kill of workers that still run (default: 30)",
)
_add = PARSER.add_argument_group("network").add_argument
_add(
    "--network",
    choices=("host", "private"),
    default="host",
    help="host (default): this machine's network; private: one without access from or to the outside (no downloads, no "
    "logging services)",
)


def main(argv: Sequence[str]) -> int:
    """Starts the cluster and waits for its end; returns the status that `--help` explains."""
    options = PARSER.parse_args(argv)
    from ..distribute.launcher.launch import Launcher  # imports NumPy, which `--help` need not wait for
    from ..distribute.launcher.tasks import Layout

    if not os.path.isfile(options.script):
        PARSER.error(f"there is no file {options.script!r} to run")
    try:
        timeout = peer_timeout() if options.timeout is None else options.timeout
    except ValueError as error:
        PARSER.error(str(error))
    if options.log_dir is not None:
        PARSER.make_folder("argument --log-dir", options.log_dir)
    layout = Layout(
        workers=options.workers,
        replicas_per_worker=options.replicas_per_worker,
        parameter_servers=options.parameter_servers,
        stages=options.stages,
        timeout=timeout,
    )
    script = [options.script, *options.arguments]
    return Launcher(script, layout, options.restarts, options.log_dir, options.grace, options.network).run()
