"""Runs the blocks of one page in order in a fresh process, as a reader would: `run_page.py PAGE`."""

import contextlib
import importlib.util
import io
import itertools
import math
import os
import pathlib
import re
import subprocess
import sys
import traceback
import types

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parent.parent.parent
sys.path[:0] = map(str, (HERE.parent, HERE.parents[1] / "helpers"))  # also `helpers`, for CONTRIBUTING.md

from blocks import BEFORE, NOT_RUN, TOOLS, Block, blocks_of  # noqa: E402
from children import import_tested_tree  # noqa: E402

import_tested_tree()

# Commands whose output a page shows.
CHECKED = "$ python -m unisono backups "
_NUMBER = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
_TIMES = re.compile(r"[\d.]+ (us|ms|s)\b(/step)?|[\d.]+k? samples/s|\S*/tmp\w{8}/")


def main(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    every = blocks_of(text)
    shown = {a.line: b.code for a, b in itertools.pairwise(every) if b.language == "text"}
    blocks = [block for block in every if block.language == "python" or block.code.startswith(CHECKED)]
    module = module_of([block for block in blocks if block.language == "python"])
    exec(BEFORE.get(page, ""), vars(module))
    for block in blocks:
        if block.language != "python":
            check_output(block, f"{page}, line {block.line}")
            continue
        reason = block.not_run or next((r for t, r in NOT_RUN.get(page, {}).items() if t in block.code), "")
        reason = reason or ", ".join(f"{name} is not installed" for name in lacking(block.code))
        where = f"{page}, line {block.line}"
        code = compile("\n" * (block.line - 1) + block.code, module.__file__, "exec")
        if reason:
            print(f"{where}: not run: {reason}")
            continue
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(code, vars(module))
        except BaseException:
            traceback.print_exc()
            sys.exit(f"{where} fails")
        print(printed.getvalue())
        if block.line in shown and not same_output(printed.getvalue(), shown[block.line]):
            sys.exit(f"{where} does not print what the page shows:\n{shown[block.line]}")
        print(f"{where}: ok", flush=True)
    for name, test in list(vars(module).items()):
        if page == "CONTRIBUTING.md" and name.startswith("test_"):  # this page shows how to write a test
            test()


def lacking(code: str) -> list[str]:
    """The third-party packages that a block imports and that are missing here; only those of the extra "tools"."""
    imported = re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE)
    return [name for name in imported if name in TOOLS and importlib.util.find_spec(name) is None]


def check_output(block: Block, where: str) -> None:
    """Runs the command of a block and compares its output, except times and sizes, with the block."""
    command, _, shown = block.code.partition("\n")
    words = [sys.executable, *command.removeprefix("$ python ").split()]
    printed = subprocess.run(words, capture_output=True, text=True).stdout
    if _without_chance(printed) != _without_chance(shown):
        sys.exit(f"{where} shows\n{shown}\nbut the command prints\n{printed}")
    print(f"{where}: ok", flush=True)


def same_output(printed: str, shown: str) -> bool:
    """Whether a block prints what the page shows, except times and last digits; a line of "..." is any lines."""
    found, *both = (_words(text) for text in (printed, *re.split(r"^\.\.\.$", shown, flags=re.M)))
    first, last = both[0], both[-1]
    if len(both) == 1:
        return len(found) == len(first) and all(map(_same_word, found, first))
    pairs = [*zip(found, first), *zip(reversed(found), reversed(last))]
    return len(found) > len(first) + len(last) and all(_same_word(*pair) for pair in pairs)


def _words(text: str) -> list[str]:
    text = _TIMES.sub("TIME", text.replace("\r", "\n"))
    return [word for part in re.split(_NUMBER, text) for word in part.split()]


def _same_word(one: str, other: str) -> bool:
    try:
        return math.isclose(float(one), float(other), rel_tol=0.02, abs_tol=1e-6)
    except ValueError:
        return one == other


def _without_chance(text: str) -> str:
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", text)
    return re.sub(r"\d+\.\d (?=[kMG]B)", "SIZE ", text).strip()


def module_of(blocks: list) -> types.ModuleType:
    """An empty module whose file has the blocks at their lines, because `tf.function` reads the source it compiles."""
    lines: list[str] = []
    for block in blocks:
        lines += [""] * (block.line - 1 - len(lines)) + block.code.splitlines()
    path = pathlib.Path("page.py").resolve()
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    module = types.ModuleType("page")
    module.__file__ = str(path)
    sys.modules["page"] = module
    return module


if __name__ == "__main__":
    main(sys.argv[1])
