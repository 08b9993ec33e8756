"""Builds a release from a tag: `make release`. Publishes nothing: the last line says how that is done.

The commit that is checked out must carry the tag `v<version>`, and the version, the changelog and the citation must agree.
"""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def problems(version: str, tags: list[str], changes: str, citation: str, changelog: str) -> list[str]:
    """What stands against a release, one sentence each.

    Args:
        version: of the package.
        tags: those of the commit that is checked out.
        changes: what `git status --porcelain` prints.
        citation: the text of CITATION.cff.
        changelog: the text of CHANGELOG.md.
    """
    found = []
    if f"v{version}" not in tags:
        has = f"its tags are {', '.join(tags)}" if tags else "it has none"
        found.append(f"The commit needs the tag v{version}, but {has}: `git tag v{version}`.")
    if changes.strip():
        found.append("Files differ from the commit: commit them, or check the tag out elsewhere.")
    if not re.search(rf"^version: {re.escape(version)}$", citation, re.MULTILINE):
        found.append(f"CITATION.cff names another version than {version}.")
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        found.append(f"CHANGELOG.md has no heading `## [{version}] - <year>-<month>-<day>`.")
    unreleased = re.search(r"^## \[Unreleased\]\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if unreleased and unreleased[1].strip():
        found.append(f"CHANGELOG.md has entries under Unreleased: move them below {version}.")
    return found


def main() -> int:
    """Checks and builds; returns 0, or 1 if there is a problem."""
    version = re.search(r'__version__ = "(.+)"', _text("unisono/version.py"))[1]
    against = problems(
        version,
        _git("tag", "--points-at", "HEAD").split(),
        _git("status", "--porcelain"),
        _text("CITATION.cff"),
        _text("CHANGELOG.md"),
    )
    if against:
        print(*against, sep="\n", file=sys.stderr)
        return 1
    folder = ROOT / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(folder)], cwd=ROOT, check=True)
    files = sorted(map(str, folder.iterdir()))
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], cwd=ROOT, check=True)
    print(*files, sep="\n")
    print(f"unisono {version} is built. To publish it: {sys.executable} -m twine upload dist/*")
    return 0


def _text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def _git(*command: str) -> str:
    return subprocess.run(
        ["git", *command], cwd=ROOT, check=True, capture_output=True, text=True, timeout=60
    ).stdout


if __name__ == "__main__":
    sys.exit(main())
