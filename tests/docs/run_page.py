"""Runs the Python blocks of one page one after another in one fresh process, as a reader would: `run_page.py PAGE`."""

import os
import pathlib
import sys
import traceback

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parent.parent.parent
sys.path.insert(0, str(HERE.parent))

from blocks import BEFORE, NOT_RUN, blocks_of  # noqa: E402


def main(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    if "simulate_devices(" in text:
        import unisono

        unisono.distribute.simulate_devices(3 if "simulate_devices(3)" in text else 2)
    namespace: dict = {"__name__": "__main__"}
    exec(BEFORE.get(page, ""), namespace)
    for block in blocks_of(text):
        if block.language != "python":
            continue
        reason = block.not_run or next((r for t, r in NOT_RUN.get(page, {}).items() if t in block.code), "")
        where = f"{page}, line {block.line}"
        code = compile("\n" * (block.line - 1) + block.code, page, "exec")
        if reason:
            print(f"{where}: not run: {reason}")
            continue
        try:
            exec(code, namespace)
        except BaseException:
            traceback.print_exc()
            sys.exit(f"{where} fails")
        print(f"{where}: ok", flush=True)
    for name, test in list(namespace.items()):
        if name.startswith("test_"):  # a page that shows how a test is written
            test()


if __name__ == "__main__":
    main(sys.argv[1])
