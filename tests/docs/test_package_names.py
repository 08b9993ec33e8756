"""No page, message or manifest tells a user to install Unisono by a name that is not published."""

import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).parents[2]
UNPUBLISHED = re.compile(r"pip install[^\n`]*[\s'\"]unisono(?!\s*@)(\[\w+\])?(?!\s*@)[\s'\"`]")


def test_no_text_installs_a_package_that_is_not_published():
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout
    found = []
    for name in files.split("\0"):
        path = ROOT / name
        if (
            not name
            or path.suffix in (".png", ".ipynb", ".svg")
            or name.startswith("tests/")
            or not path.is_file()
        ):
            continue
        text = path.read_text(errors="ignore")
        found += [f"{name}: {match.group()}" for match in UNPUBLISHED.finditer(text)]
    assert not found


def test_names_are_noticed():
    assert UNPUBLISHED.search('pip install "unisono[report]"')
    assert UNPUBLISHED.search("pip install unisono ")
    assert not UNPUBLISHED.search('pip install "unisono[demo] @ git+https://example.org/unisono"')
    assert not UNPUBLISHED.search("pip install -e '.[dev]'")
