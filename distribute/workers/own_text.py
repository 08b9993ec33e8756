"""What of a program's output and errors is its own: without the notices of TensorFlow and the frames of libraries.

Needs no TensorFlow.
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Iterable
from pathlib import Path

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
    | ^This\ is\ usually\ caused\ by\ an\ earlier\ error\ during\ execution\.
    | ^\s*\[\[[^\]]+\]\]
    | ^\s*\d+\ (root\ error\(s\)\ found|successful\ operations|derived\ errors\ ignored)\.
    | ^Graph\ execution\ error:$
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
    """Whether a frame's file is the user's: of no library, not Python's, not ours."""
    slashes = path.replace("\\", "/")
    return not (
        any(folder in slashes for folder in _LIBRARIES)
        or path.startswith((_OURS, _PYTHON, "<frozen"))
        or slashes.endswith("/runpy.py")
    )


def own_lines(lines: Iterable[str]) -> list[str]:
    """The lines of a program's output that are its own: no log of TensorFlow, no frame of a library, no blank one."""
    kept = []
    dropping = False  # in a frame that is not the user's
    in_graph = False  # in the list of places at which a node was made
    for line in lines:
        frame = _FRAME.match(line)
        if in_graph and (frame or not line.strip()):
            continue
        in_graph = bool(_DETECTED.match(line))
        if in_graph:
            continue
        if frame:
            dropping = not is_own_file(frame["file"])
        elif dropping:
            dropping = line.startswith("    ") or not line.strip()
        if not dropping and not _ENGINE.match(line):
            kept.append(line)
    return kept


def essence(text: str) -> str:
    """The message of an error without what TensorFlow puts around it; all of it where nothing else is left."""
    return "\n".join(own_lines(text.splitlines())) or text
