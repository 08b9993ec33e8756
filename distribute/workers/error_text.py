"""Finds other processes in the text of an error, and the program's own lines in its output. Needs no TensorFlow.

`tests/unit/test_error_text.py` has one message of each kind.
"""

import dataclasses
import os
import re
import sysconfig
from collections.abc import Iterable
from pathlib import Path

_JOB = re.compile(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)")
_NAME = re.compile(r"(?:worker|chief) \d+")
LEADER = "leader"

# Each finds the part of a text that names the lost processes: as "worker 1", by an address, or as a TensorFlow task.
_LOST = (
    re.compile(r"lost contact with (worker \d+(?: and worker \d+)*)"),
    re.compile(r"((?:worker \d+(?: \([^)]*\))?(?:, )?)+) did not (?:start within|reach)\b"),
    re.compile(r"[Pp]arameter server \d+ at (\S+) (?:does not answer|listens but)"),
    re.compile(r"worker \d+ at (\S+) listens but does nothing"),
    re.compile(r"stage [\d and]+ at (\S+) \(/job:\w+/task:\d+\) (?:has|does) "),
    re.compile(r"tasks are unhealthy[^\n]*\n((?:\s*/job:\w+/replica:\d+/task:\d+)+)"),
)
# By a process that has lost neither.
_PASSED_ON = re.compile(r"lost contact: ((?:\w+ \d+ is at [^\s,)]+(?:, )?)+)")
_REPORTED_BY = (
    re.compile(r"(worker \d+) failed: "),
    re.compile(r"Error reported from (/job:\w+/(?:replica:\d+/)?task:\d+)"),
)
_REMOTE = re.compile(r"information from remote target (/job:\w+/replica:\d+/task:\d+) while calling")
_LEADER_RPC = re.compile(r"RPC: /tensorflow\.CoordinationService/")
_GONE = re.compile(
    r"Socket closed|Connection reset|msg:Connection timed out|(?i:connection refused)|failed to connect|Deadline Exceeded|"
    r"stopped sending heartbeats"
)
_SOMEBODY = re.compile(
    r"a worker was lost while the cluster started|a worker hangs in it|Collective ops is aborted by: $"
)


@dataclasses.dataclass(frozen=True)
class Blame:
    """The names of the processes that a text blames.

    `lost`: contact with them was lost: "worker 1", "ps 0", an address, or "leader" (the process that runs TensorFlow's
    coordination service: the chief). `reported_by`: the error came from them.
    """

    lost: tuple[str, ...] = ()
    reported_by: tuple[str, ...] = ()


def blame_in(text: str) -> Blame | None:
    """Return the processes that a text blames; None where it names none.

    >>> blame_in("lost contact with worker 2: worker 0 has waited 11 s").lost
    ('worker 2',)
    """
    if passed_on := _find_named((_PASSED_ON,), text):
        # Of a link that is cut, one name is the other end than that of the process which reported it first.
        is_link = len(passed_on) == 1 and _GONE.search(text)
        return Blame(passed_on, _find_named(_REPORTED_BY, text)[-1:] if is_link else ())
    lost, reported_by = _find_named(_LOST, text), _find_named(_REPORTED_BY, text)
    if not lost and not reported_by:  # TensorFlow itself names the peer of a connection
        remote = _find_named((_REMOTE,), text)
        if _GONE.search(text):  # the lost one, then the one that lost it, then those that pass it on
            lost, reported_by = remote[:1] or ((LEADER,) if _LEADER_RPC.search(text) else ()), remote[1:2]
        else:
            reported_by = remote
    return Blame(lost, reported_by) if lost or reported_by or _SOMEBODY.search(text) else None


def _find_named(patterns: Iterable[re.Pattern[str]], text: str) -> tuple[str, ...]:
    """Return tasks that the matches name, as "worker 1" or "/job:worker/replica:0/task:1"; any other is an address."""
    names = []
    for match in (each for pattern in patterns for each in pattern.findall(text)):
        names += _NAME.findall(match) or [f"{job} {number}" for job, number in _JOB.findall(match)] or [match]
    return tuple(dict.fromkeys(names))


_LIBRARIES = ("/site-packages/", "/dist-packages/")
_OURS = str(Path(__file__).parents[2]) + os.sep
_PYTHON = sysconfig.get_path("stdlib") + os.sep

_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line \d+(, in| in|$)')
_DETECTED = re.compile(r"^\s*Detected at node .* defined at \(most recent call last\):")
_ENGINE = re.compile(
    r"""
    ^[IWE]\d{4}\ [\d:.]+\ +\d+\ [^\s\]]+\.(cc|h|cpp|cu)(\.inc)?:\d+\]  # logged in C++; F, fatal, is kept
    | ^\d{4}-\d\d-\d\d\ [\d:.]+:\ [IWE]\ \S+\.(cc|h|cpp|cu):\d+\]
    | ^WARNING:\ All\ log\ messages\ before\ absl::InitializeLog\(\)
    | ^To\ enable\ the\ following\ instructions:
    | ^Additional\ GRPC\ error\ information\ from\ remote\ target
    | ^:UNKNOWN:Error\ received\ from\ peer
    | ^RPC:\ /tensorflow\.
    | ^The\ error\ could\ be\ from\ a\ previous\ operation\.\ Restart\ your\ program
    | ^The\ tasks\ have\ crashed\.\ Check\ the\ task\ logs
    | ^This\ is\ usually\ caused\ by\ an\ earlier\ error\ during\ exec
    | ^\s*\[\[[^\]]+\]\]
    | ^\s*\d+\ (root\ error\(s\)\ found|successful\ operations|derived\ errors\ ignored)\.
    | ^Graph\ exec\w+\ error:$
    | ^\s+@\ +0x[0-9a-f]+
    | ^PC:\ @
    | ^\*\*\*\ (Check\ failure|Begin|End)\ stack\ trace
    | ^Extension\ modules:
    | ^\s*[~^]+\s*$
    | ^\s*$
    """,
    re.VERBOSE,
)


def is_own_file(path: str) -> bool:
    """Return whether a frame's file is the user's: not of a library, Python or Unisono."""
    return not (
        any(folder in path for folder in _LIBRARIES)
        or path.startswith((_OURS, _PYTHON, "<frozen"))
        or path.endswith("/runpy.py")
    )


def is_unisono_file(path: str) -> bool:
    """Return whether a frame's file is one of this library."""
    return path.startswith(_OURS)


def own_lines(lines: Iterable[str]) -> list[str]:
    """Return the program's own lines of its output: no log of TensorFlow, no frame of a library, no blank line."""
    kept = []
    dropping = False  # in a frame that is not the user's
    in_graph = False  # in the list of places at which a node was created
    for line in lines:
        frame = _FRAME.match(line)
        if in_graph and (frame or not line.strip()):
            continue
        if in_graph := bool(_DETECTED.match(line)):
            continue
        if frame:
            dropping = not is_own_file(frame["file"])
        elif dropping:
            dropping = line.startswith("    ") or not line.strip()
        if not dropping and not _ENGINE.match(line):
            kept.append(line)
    return kept


def essence(text: str) -> str:
    """Return the message of an error without TensorFlow's additions; all of it where nothing else is left."""
    return "\n".join(own_lines(text.splitlines())) or text
