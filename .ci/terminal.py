"""Record what a terminal shows of a GPT that is killed and started again: `make terminal` writes docs/assets/resume.svg.

The program runs three times in a terminal of its own: to its end; until it is killed in its second epoch; and once more in
the folder of the killed run. The weights of the first and the last run must have the same bits, else nothing is written.
progress.svg is the terminal of the first run in the middle of its second epoch. TensorFlow's notices are left out.
"""

from __future__ import annotations

import html
import os
import pathlib
import pty
import re
import signal
import struct
import sys
import tempfile
import termios
from fcntl import ioctl

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "examples" / "gpt.py"
OPTIONS = ["--policy", "float32"]
ASSETS = ROOT / "docs" / "assets"
PICTURE, PROGRESS = ASSETS / "resume.svg", ASSETS / "progress.svg"
COLUMNS, LINE, WIDTH, MARGIN = 100, 19, 8.43, 16  # characters; pixels
NOTICE = re.compile(r"WARNING: All log messages|[IWE]\d{4} ")
HALF = re.compile(r"Epoch 2/2[\s\S]*?\r *[789]\d/150 [^\r]*tokens/s[^\r]*")
KILL_AT = re.compile(r"Epoch 2/2[\s\S]*\r *(?:[89]\d|1[01]\d)/150 ")
_COLORS = """
  .page { fill: #f6f8fa } text { fill: #1f2328 } .command { fill: #0550ae; font-weight: bold } .killed { fill: #cf222e }
  .same { fill: #116329; font-weight: bold }
  @media (prefers-color-scheme: dark) {
    .page { fill: #161b22 } text { fill: #e6edf3 } .command { fill: #79c0ff } .killed { fill: #ff7b72 }
    .same { fill: #7ee787 }
  }"""


def record(folder: str, kill_at: re.Pattern[str] | None = None) -> str:
    """Return what the program prints to a terminal. It is killed when that matches `kill_at`."""
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, str(PROGRAM), *OPTIONS, "--folder", folder])
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    printed, killed = "", False
    while True:
        try:
            more = os.read(terminal, 4096)
        except OSError:  # the program has ended
            break
        printed += more.decode(errors="replace")
        if kill_at is not None and not killed and kill_at.search(printed):
            os.kill(child, signal.SIGKILL)
            killed = True
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    if killed != os.WIFSIGNALED(status) or (kill_at is not None) != killed:
        raise SystemExit(f"the program ended with status {status}:\n{printed}")
    return printed


def read_screen(printed: str) -> list[str]:
    """Return the lines that are seen in the end: a line that is written again replaces what it was."""
    lines = []
    for line in printed.replace("\r\n", "\n").split("\n"):
        shown = ""
        for part in re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", line).split("\r"):
            shown = part + shown[len(part) :]
        lines.append(shown.rstrip())
    return lines


def read_program(printed: str, folder: str) -> list[str]:
    """Return the command and what it printed, without empty lines and TensorFlow's notices."""
    shown = [line for line in read_screen(printed) if line and not NOTICE.match(line)]
    return [f"$ {' '.join(['python gpt.py', *OPTIONS, '--folder', folder])}", *shown]


def draw(lines: list[str]) -> str:
    """Return the picture of lines of a terminal."""
    width, height = COLUMNS * WIDTH + 2 * MARGIN, len(lines) * LINE + 2 * MARGIN
    rows = []
    for number, line in enumerate(lines):
        kind = next((name for mark, name in _MARKS.items() if line.startswith(mark) or mark in line), "")
        place = f'x="{MARGIN}" y="{MARGIN + (number + 0.75) * LINE:.0f}"'
        rows.append(f'<text {place} class="{kind}" xml:space="preserve">{html.escape(line)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" '
        f'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14">\n<style>{_COLORS}\n</style>\n'
        f'<rect class="page" width="100%" height="100%" rx="8"/>\n' + "\n".join(rows) + "\n</svg>\n"
    )


_MARKS = {"$ ": "command", "Killed": "killed", "sha256": "same"}


def main() -> None:
    """Run the program three times, and draw."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, kill_at in (("whole", None), ("killed", KILL_AT), ("killed", None)):
            runs.append((name, record(name, kill_at)))
    os.chdir(ROOT)
    whole, killed, resumed = (read_program(printed, name) for name, printed in runs)
    if whole[-1] != resumed[-1] or "sha256" not in whole[-1]:
        raise SystemExit(f"the runs differ: {whole[-1]}, and {resumed[-1]}")
    lines = [*whole, "", *killed, "Killed", "", *resumed]
    PICTURE.write_text(draw(lines), encoding="utf-8")
    name, printed = runs[0]
    if (half := HALF.search(printed)) is None:
        raise SystemExit(f"no step in the middle of the second epoch was printed:\n{printed}")
    PROGRESS.write_text(draw(read_program(printed[: half.end()], name)), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
