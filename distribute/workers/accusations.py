"""What the text of an error says of other processes: that one was lost, or that the error came from one.

The sentences are our own and TensorFlow's; `tests/unit/test_accusations.py` holds one of each kind. Needs no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import re

_JOB = re.compile(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)")
_NAME = re.compile(r"worker \d+")
LEADER = "leader"

# Each finds a stretch of text in which the lost ones are named: as "worker 1", by an address, or as a task of TensorFlow's.
_LOST_WORKERS = (
    re.compile(r"lost contact with (worker \d+(?: and worker \d+)*)"),
    re.compile(r"((?:worker \d+(?: \([^)]*\))?(?:, )?)+) did not come (?:within|to)\b"),
)
_LOST_ADDRESSES = (
    re.compile(r"[Pp]arameter server \d+ at (\S+) (?:does not answer|listens but)"),
    re.compile(r"worker \d+ at (\S+) listens but does nothing"),
    re.compile(r"stage [\d and]+ at (\S+) \(/job:\w+/task:\d+\) (?:has|does) "),
)
_LOST_TASKS = (re.compile(r"tasks are unhealthy[^\n]*\n((?:\s*/job:\w+/replica:\d+/task:\d+)+)"),)
_TOLD_BY = (
    re.compile(r"(worker \d+) failed: "),
    re.compile(r"Error reported from (/job:\w+/(?:replica:\d+/)?task:\d+)"),
)
_REMOTE = re.compile(r"information from remote target (/job:\w+/replica:\d+/task:\d+) while calling")
_LEADER_RPC = re.compile(r"RPC: /tensorflow\.CoordinationService/")
_GONE = re.compile(
    r"Socket closed|Connection reset|[Cc]onnection refused|failed to connect|Deadline Exceeded|stopped sending heartbeats"
)
_SOMEBODY = re.compile(
    r"a worker was lost while the cluster started|a worker hangs in it|Collective ops is aborted by: $"
)


@dataclasses.dataclass(frozen=True)
class Accusation:
    """What a text says of other processes.

    Attributes:
        lost: names of those with whom contact was lost: "worker 1", "ps 0", an address, or "leader" (the process that runs
            TensorFlow's coordination service: the chief).
        told_by: names of those from which the error came.
    """

    lost: tuple[str, ...] = ()
    told_by: tuple[str, ...] = ()


def accusation_in(text: str) -> Accusation | None:
    """What a text says of other processes; None where it speaks of none.

    >>> accusation_in("lost contact with worker 2: worker 0 has waited 11 s").lost
    ('worker 2',)
    """
    lost: list[str] = []
    for pattern in _LOST_WORKERS:
        for match in pattern.finditer(text):
            lost += _NAME.findall(match[1])
    for pattern in _LOST_ADDRESSES:
        lost += pattern.findall(text)
    for pattern in _LOST_TASKS:
        for match in pattern.finditer(text):
            lost += tasks_in(match[1])
    told_by = [name for pattern in _TOLD_BY for each in pattern.findall(text) for name in tasks_in(each)]
    if not lost and not told_by:  # TensorFlow's bare words say less: the other end of a connection
        remote = [name for each in _REMOTE.findall(text) for name in tasks_in(each)]
        if _GONE.search(text):
            lost = remote or ([LEADER] if _LEADER_RPC.search(text) else [])
        else:
            told_by = remote
    if not lost and not told_by and not _SOMEBODY.search(text):
        return None
    return Accusation(tuple(dict.fromkeys(lost)), tuple(dict.fromkeys(told_by)))


def tasks_in(text: str) -> list[str]:
    """The tasks that a text names, as "worker 1" or "/job:worker/replica:0/task:1"."""
    return _NAME.findall(text) or [f"{job} {number}" for job, number in _JOB.findall(text)]
