"""The code blocks of a page, and what a page assumes before its first block."""

import dataclasses
import re
import textwrap

_BLOCK = re.compile(
    r"(?:<!--\s*not run:(?P<reason>[^>]*)-->\s*\n+)?^(?P<indent> *)```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^ *```",
    re.MULTILINE | re.DOTALL,
)


@dataclasses.dataclass
class Block:
    """One fenced block: its language, code, line in the page, and why it is skipped (empty: it runs)."""

    language: str
    code: str
    line: int
    not_run: str


def blocks_of(text):
    """The blocks of a page, in order."""
    found = []
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("code")) + 1
        code = textwrap.dedent(match["code"])
        found.append(Block(match["language"], code, line, (match["reason"] or "").strip()))
    return found


# What the reader of a page already has.
BEFORE = {
    "CONTRIBUTING.md": "import unisono; unisono.distribute.simulate_devices(4)"  # as tests/conftest.py
}

# Blocks that cannot run here, by a text that they contain; they must still be valid Python.
NOT_RUN = {
    "docs/guides/parameter-servers.md": {
        "ParameterServerStrategy(": "needs the processes that the launcher starts",
        "ClusterCoordinator(": "needs the processes that the launcher starts",
    },
    "docs/guides/pipeline.md": {"connect()": "needs worker processes"},
    "docs/guides/several-machines.md": {"model.fit(...": "an ellipsis stands for the reader's arguments"},
}

# Packages of the extra "tools": blocks that import one of these are skipped if it is not installed.
TOOLS = {"comet_ml", "grain", "keras_tuner", "mlflow", "onnxruntime"}
TOOLS |= {"optuna", "pyarrow", "tf2onnx", "wandb"}
