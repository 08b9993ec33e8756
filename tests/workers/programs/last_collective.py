"""A custom loop that ends right after its last collective, of which worker 0 gets its part over a slow connection."""

import json
import os
import socket
import threading
import time

import tensorflow as tf

import unisono
from unisono.distribute.workers import cluster_start

SIZE, RATE = 4_000_000, 2e6  # numbers; bytes per second


def pump(source, target, rate):
    try:
        while data := source.recv(65536):
            target.sendall(data)
            time.sleep(len(data) / rate if rate else 0)
    except OSError:
        pass
    for each in (source, target):
        each.close()


def slow_connection(port):
    """The port of a server in this process that passes data to and slowly from another one."""
    server = socket.create_server(("127.0.0.1", 0))

    def accept():
        while True:
            near, _ = server.accept()
            far = socket.socket()
            far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            while far.connect_ex(("127.0.0.1", port)):
                time.sleep(0.1)
            for source, target, rate in ((near, far, None), (far, near, RATE)):
                threading.Thread(target=pump, args=(source, target, rate), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return server.getsockname()[1]


config = json.loads(os.environ["TF_CONFIG"])
if config["task"]["index"] == 0:
    workers = config["cluster"]["worker"]
    workers[1] = f"127.0.0.1:{slow_connection(int(workers[1].rpartition(':')[2]))}"
    os.environ["TF_CONFIG"] = json.dumps(config)
cluster_start.rendezvous = lambda *_: None  # it compares the addresses

strategy = tf.distribute.MultiWorkerMirroredStrategy()


@tf.function
def step(x):
    def on_replica(x):
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(x))

    return strategy.run(on_replica, args=(x,))


for _ in range(2):
    step(tf.ones([SIZE]))
print(unisono.distribute.worker_index(), "is over")
