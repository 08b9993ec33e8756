"""Runs the Python blocks of one page one after another in one fresh process, as a reader would: `run_page.py PAGE`."""

import os
import pathlib
import re
import sys
import traceback
import types

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parent.parent.parent
sys.path.insert(0, str(HERE.parent))

from blocks import BEFORE, NOT_RUN, blocks_of  # noqa: E402


def main(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    devices = [int(count) for count in re.findall(r"simulate_devices\((\d)\)", text)]
    if devices:
        import unisono

        unisono.distribute.simulate_devices(max(devices))
    blocks = [block for block in blocks_of(text) if block.language == "python"]
    module = module_of(blocks)
    exec(BEFORE.get(page, ""), vars(module))
    for block in blocks:
        reason = block.not_run or next((r for t, r in NOT_RUN.get(page, {}).items() if t in block.code), "")
        where = f"{page}, line {block.line}"
        code = compile("\n" * (block.line - 1) + block.code, module.__file__, "exec")
        if reason:
            print(f"{where}: not run: {reason}")
            continue
        try:
            exec(code, vars(module))
        except BaseException:
            traceback.print_exc()
            sys.exit(f"{where} fails")
        print(f"{where}: ok", flush=True)
    for name, test in list(vars(module).items()):
        if page == "CONTRIBUTING.md" and name.startswith("test_"):  # it shows how a test is written
            test()


def module_of(blocks: list) -> types.ModuleType:
    """An empty module whose file holds the blocks at their lines: `tf.function` reads the source of what it compiles."""
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
