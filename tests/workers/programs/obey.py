"""A worker without TensorFlow, for tests of the launcher: does what its second argument says."""

import os
import signal
import subprocess
import sys
import time

out, order = sys.argv[1:3]
worker = os.environ["TF_CONFIG"].partition('"index": ')[2][0]
restart = os.environ["UNISONO_RESTART"]
print(f"worker {worker} restart {restart}", flush=True)


def write(name, text):
    with open(f"{out}/{name}.part", "w") as file:
        file.write(text)
    os.rename(f"{out}/{name}.part", f"{out}/{name}")


write(f"pid-{worker}-{restart}", str(os.getpid()))
if order == "fail once" and worker == "1" and restart == "0":
    print("what went wrong", file=sys.stderr, flush=True)
    sys.exit(7)
if order == "fail once" and restart == "1":
    sys.exit(0)
if order == "port" and restart == "0" and not os.path.exists(f"{out}/second-{worker}"):
    write(f"second-{worker}", "")
    print("Could not start gRPC server", file=sys.stderr, flush=True)
    sys.exit(1)
if order == "port":
    sys.exit(0)
if order == "children":
    child = subprocess.Popen(["sleep", "600"])
    write(f"child-{worker}", str(child.pid))
if order == "signal":

    def note(number, frame):
        name = signal.Signals(number).name
        print(name, flush=True)
        write(f"{name}-{worker}", "")
        if number == signal.SIGTERM:
            sys.exit(0)

    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, note)
if order == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
write(f"ready-{worker}", "")
time.sleep(600)
