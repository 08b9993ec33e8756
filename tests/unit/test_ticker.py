"""The thread of a `Ticker` belongs to the process that starts it."""

import subprocess
import sys

PROGRAM = """
import os, threading
from unisono.distribute.workers.ticker import Ticker

ticked = threading.Event()
ticker = Ticker("test", ticked.set, 0.01)
if child := os.fork():
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
ticker.start()
os._exit(not ticked.wait(60))
"""


def test_ticker_that_was_made_before_a_fork_starts_in_the_child():
    assert subprocess.run([sys.executable, "-c", PROGRAM], check=False).returncode == 0
