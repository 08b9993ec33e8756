"""A serving process: a parameter server, a worker of a coordinator, or a later stage of a pipeline.

`python -m unisono launch` starts it; on a cluster each machine runs `python -m unisono.distribute.server` itself.
"""

import signal
import sys

from .workers.cluster import ClusterError, read_cluster


def main() -> int:
    """Serve until a signal ends the process; return 2 if TF_CONFIG is missing or wrong, or the port is in use."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own handler would wait for the server to return
    try:
        if (cluster := read_cluster()) is None:
            raise ClusterError("TF_CONFIG is not set: a server finds its address and its task there.")
    except ClusterError as error:
        print(f"unisono.distribute.server: {error}", file=sys.stderr)
        return 2
    import tensorflow as tf

    try:
        server = tf.distribute.Server(
            tf.train.ClusterSpec(cluster.jobs),
            job_name=cluster.task_type,
            task_index=cluster.task_index,
            protocol="grpc",
            start=True,
        )
    except tf.errors.UnknownError as error:
        print(
            f"unisono.distribute.server: {error.message}: {cluster.address} is in use by another process (this task's "
            "previous server may still be running), or this user may not open it: free it and restart this server.",
            file=sys.stderr,
        )
        return 2
    print(f"serving {cluster.task_type} {cluster.task_index} at {cluster.address}", flush=True)
    server.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
