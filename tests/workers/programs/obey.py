"""A worker without TensorFlow, for tests of the launcher: its second argument says what it does."""

import os
import signal
import subprocess
import sys
import time

out, order = sys.argv[1:3]
worker = os.environ.get("TF_CONFIG", '"index": 0').partition('"index": ')[2][0]
restart = os.environ["UNISONO_RESTART"]
print(f"worker {worker} restart {restart}", flush=True)


def write(name, text):
    with open(f"{out}/{name}.part", "w") as file:
        file.write(text)
    os.rename(f"{out}/{name}.part", f"{out}/{name}")


def wait_until(true):
    while not true():
        time.sleep(0.01)


write(f"pid-{worker}-{restart}", str(os.getpid()))
if order == "fail once" and worker == "1" and restart == "0":
    # The launcher ends the others immediately: at least the first of them must have started.
    wait_until(lambda: os.path.exists(f"{out}/pid-0-0"))
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
if order == "endpoint":
    print("this port is in use by another process", file=sys.stderr, flush=True)
    sys.exit(1)
if order == "children":
    child = subprocess.Popen(["sleep", "600"])
    write(f"child-{worker}", str(child.pid))
    # A daemon: with its own session, and without its parent.
    start = "import subprocess as s; print(s.Popen(['sleep', '600'], start_new_session=True, stdout=-3, stderr=-3).pid)"
    daemon = subprocess.run(
        [sys.executable, "-c", start], capture_output=True, check=True, start_new_session=True
    )
    write(f"daemon-{worker}", daemon.stdout.decode().strip())
if order in ("lost", "same", "taken"):
    del os.environ["TF_CONFIG"]  # it would make TensorFlow load
    from unisono.distribute.workers import records

    records.start(os.environ["UNISONO_RECORDS"], f"worker {worker}")
if order == "same":
    with records.report_position(lambda: "epoch 1, step 7"):
        raise ValueError(f"file {os.getpid()} is broken")
if order == "taken":
    from unisono.callbacks.backup.files.owner import FolderInUseError

    raise FolderInUseError("backup has been taken over by process 1 on other")
if order == "damaged":
    sys.exit(65)
if order == "lost" and worker == "0":
    wait_until(lambda: os.path.exists(f"{out}/pid-1-0"))
    raise RuntimeError("aborted by: lost contact with worker 1: worker 0 has waited 11 s")
if order == "early" and worker == "1":
    sys.exit(0)
if order == "early":
    wait_until(lambda: os.path.exists(f"{out}/pid-1-0"))
    with open(f"{out}/pid-1-0") as file:
        other = file.read()
    wait_until(lambda: not os.path.exists(f"/proc/{other}"))  # the launcher has noticed
    print("UnavailableError: lost contact with worker 1: worker 0 has waited", file=sys.stderr, flush=True)
    sys.exit(1)
if order == "stop" and worker == "0":
    os.kill(os.getpid(), signal.SIGSTOP)
if order == "noise":
    sys.stdout.buffer.write(b"\x1b]0;title\x07\x1b[31mred\x1b[0m\x9b2J 10%\r20%\n" + bytes(range(256)) * 4)
    sys.stdout.buffer.write(b"x" * 3_000_000 + b"\n" + b"line\n" * 200_000 + b"half")
    sys.stdout.flush()
    sys.exit(5)
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
