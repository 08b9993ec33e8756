"""The launcher reports the worker that failed first, not the one that noticed the failure."""

import re
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.slow]

PROGRAM = Path(__file__).parent / "programs" / "fails_first.py"
TIMEOUT = 12
NAMED = {
    "0:stop": r"worker-0 failed first: it is stopped \(SIGSTOP\) and has been for \d+ s; it was last seen at epoch",
    "1:lock": r"worker-1 failed first: it hangs or is too slow, as worker-0 found, in hang \(.*fails_first.py:",
    "1:exit": r"worker-1 failed first: it exited early, with status 0, while worker-0 still needed it",
}


def test_chief_that_is_stopped_and_workers_that_hang_or_leave_are_named(launch_forks):
    processes = {fault: launch_forks("--workers", 2, "--timeout", TIMEOUT, PROGRAM, fault) for fault in NAMED}
    for fault, process in processes.items():  # they run in parallel
        out, err = process.communicate()
        assert "misbehaves" in out
        assert process.returncode == 1, fault
        assert re.search(NAMED[fault], err), err[-4000:]
        report = err[err.index("failed first") :]
        assert not re.search(r"launch\] .*([EIW]0000 |site-packages|Graph execution error)", report), report
