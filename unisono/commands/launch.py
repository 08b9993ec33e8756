"""`python -m unisono launch`: the arguments; the work is done in `distribute.launcher`."""

import argparse
import contextlib
import os
from collections.abc import Sequence

from ..distribute.environment import LONGEST_TIMEOUT, peer_timeout
from ..distribute.workers.addresses import claim, split_address
from .parser import Parser, at_least, local

_COUNT = at_least(int, 1)


def _machines(text: str) -> tuple[int, int]:
    """Return the fewest and the most machines, of `2:4`; of a fixed number 0 and it."""
    fewest, elastic, most = text.partition(":")
    fewest, most = _COUNT(fewest), _COUNT(most if elastic else fewest)
    if fewest > most:
        raise argparse.ArgumentTypeError(f"must be MIN:MAX with MIN <= MAX, received {text[:40]}")
    return (fewest if elastic and most > 1 else 0), most


PARSER = Parser(
    "launch",
    "Start N worker processes on this machine, or on each of several, and run a script on them.",
    examples=[
        "--workers 2 train.py",
        "--workers 4 --restarts 3 --log-dir logs train.py --epochs 10",
        "--nnodes 3 --node-rank 1 --nproc-per-node 2 --rdzv-endpoint node0:29500 -m package.train",
        "--nnodes 1:4 --rdzv-endpoint node0:29500 --timeout 30 train.py",
    ],
    exit_codes={
        0: "every script exited with 0",
        1: "or another: the status of the script that failed first; 128 + n if signal n killed it",
        75: "with --nnodes MIN:MAX: the endpoint is lost, or too few machines joined in time; run the command again later",
    },
    details="""Whoever reaches the ports of the processes can run code as you: TensorFlow's servers listen on all
interfaces, and run every graph that they receive. Until the next boot, this rule closes all ports but SSH's to other
machines:

  sudo nft 'table inet unisono { chain input { type filter hook input priority 0;
    iifname != "lo" ct state new tcp dport != 22 drop; }; }'

--network private also closes them to other users of this machine.""",
)
_add = PARSER.add_argument
_add("script", help="the Python file that each worker runs, or with -m the module")
_add("arguments", nargs=argparse.REMAINDER, help="the arguments of the script")
_add = PARSER.add_argument_group("processes").add_argument
_add("-m", "--module", action="store_true", help="the script is the name of a module, as for python -m")
_add(
    "--workers",
    "--nproc-per-node",
    type=_COUNT,
    default=1,
    metavar="N",
    help="workers on this machine (default: 1)",
)
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
_add = PARSER.add_argument_group("several machines: run this on each, with torchrun's options").add_argument
_add(
    "--nnodes",
    type=_machines,
    default=(0, 1),
    metavar="N|MIN:MAX",
    help="machines (default: 1); MIN:MAX is elastic: after a loss, training continues with those that return within the "
    "timeout; others join at the next backup or end of an epoch",
)
_add(
    "--node-rank",
    type=at_least(int, 0),
    metavar="I",
    help="number of this machine, from 0 to N - 1; with MIN:MAX it is not needed, unless machine 0 does not have the "
    "endpoint's address itself",
)
_add(
    "--rdzv-endpoint",
    metavar="HOST:PORT",
    help="machine 0 and a free port there, where all workers meet; the same on all machines",
)
_add = PARSER.add_argument_group("failures and logs").add_argument
_add(
    "--restarts",
    type=at_least(int, 0),
    metavar="K",
    help="most restarts of all processes after failures (default: 0, or 3 with --nnodes MIN:MAX)",
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


def _check_machines(options: argparse.Namespace) -> None:
    elastic, nnodes = options.nnodes
    if nnodes == 1 and not options.node_rank:
        return
    if (options.node_rank is None and not elastic) or (options.node_rank or 0) >= nnodes:
        PARSER.error(
            f"argument --node-rank: pass 0 to {nnodes - 1} with --nnodes {nnodes}: {options.node_rank}"
        )
    for name, wrong in (
        ("--parameter-servers", options.parameter_servers),
        ("--network private", options.network == "private"),
    ):
        if wrong:
            PARSER.error(f"argument --nnodes: {name} works on one machine, not on {nnodes}")
    try:
        split_address(options.rdzv_endpoint or "")
    except ValueError as error:
        PARSER.error(f"argument --rdzv-endpoint: {error}")


def main(argv: Sequence[str]) -> int:
    """Start the cluster and wait for its end; return the status that `--help` explains."""
    options = PARSER.parse_args(argv)
    from ..distribute.launcher.supervisor import Supervisor  # imports NumPy, which `--help` need not wait for
    from ..distribute.launcher.tasks import RequestedCluster

    if not options.module and not os.path.isfile(options.script):
        PARSER.error(f"there is no file {options.script!r} to run")
    _check_machines(options)
    try:
        timeout = peer_timeout() if options.timeout is None else options.timeout
    except ValueError as error:
        PARSER.error(str(error))
    if options.log_dir is not None:
        PARSER.make_folder("argument --log-dir", options.log_dir)
    fewest_nodes, nnodes = options.nnodes
    derived = bool(fewest_nodes) and options.node_rank is None
    claimed = claim(options.rdzv_endpoint) if derived else None
    layout = RequestedCluster(
        workers=options.workers,
        replicas_per_worker=options.replicas_per_worker,
        parameter_servers=options.parameter_servers,
        stages=options.stages,
        timeout=timeout,
        nnodes=nnodes,
        node_rank=int(claimed is None) if derived else options.node_rank or 0,
        endpoint=options.rdzv_endpoint or "",
        fewest_nodes=fewest_nodes,
    )
    restarts = (3 if fewest_nodes else 0) if options.restarts is None else options.restarts
    script = [*["-m"] * options.module, options.script, *options.arguments]
    with claimed or contextlib.nullcontext():
        return Supervisor(script, layout, restarts, options.log_dir, options.grace, options.network).run()
