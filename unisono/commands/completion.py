"""`python -m unisono completion`: the script with which a shell completes the commands of `unisono` and their options."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from .parser import Parser

_HELP = """\
It needs argcomplete: pip install 'unisono[completion]'. Put the script where your shell reads it:
  bash  echo 'eval "$(unisono completion bash)"' >> ~/.bashrc
  zsh   echo 'eval "$(unisono completion zsh)"' >> ~/.zshrc
  fish  unisono completion fish > ~/.config/fish/completions/unisono.fish"""


def parser() -> Parser:
    """The arguments."""
    parser = Parser(
        "completion",
        "Print a shell script that completes the commands of `unisono`, their options and file names.",
        examples=["bash", "fish > ~/.config/fish/completions/unisono.fish"],
        exit_codes={0: "the script was printed", 2: "an argument is wrong, or argcomplete is not installed"},
        details=_HELP,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="your shell")
    return parser


def main(argv: Sequence[str]) -> int:
    """Prints the script; returns 0, or 2 without argcomplete."""
    options = parser().parse_args(argv)
    try:
        argcomplete: Any = importlib.import_module("argcomplete")
    except ImportError:
        return parser().failed("argcomplete is missing: pip install 'unisono[completion]'.", 2)
    print(argcomplete.shellcode(["unisono"], shell=options.shell), end="")
    return 0
