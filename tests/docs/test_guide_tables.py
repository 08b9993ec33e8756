"""Measured numbers in the docs are in regions that a benchmark writes; nothing is measured here."""

import ast
import importlib
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GUIDES = sorted(path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "design")
# From a formula, or measured once (on a machine that was lent, in many runs), with its date and commit next to the table.
CALCULATED = re.compile(r"<!-- (calculated|measured once: \d{4}-\d\d-\d\d, \w{8}) -->\n(\|.*\n)+")
FIGURE = re.compile(r"\**~?[\d,.]+( |$|\[|;|%)")


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.tables")


@pytest.fixture
def guide_tables(tables):
    return importlib.import_module("benchmarks.guide_tables")


def tables_of(text):
    """Every table of a Markdown text: the cells of its body without the first column."""
    bodies = re.findall(r"^\|.*\n\|[-:| ]+\|\n((?:\|.*(?:\n|$))*)", text, re.MULTILINE)
    rows = [[row.strip("|").split("|")[1:] for row in body.splitlines()] for body in bodies]
    return [[cell.strip() for row in table for cell in row] for table in rows]


def is_measured(cells):
    """Whether many of the cells begin with a digit."""
    return sum(bool(FIGURE.match(cell)) for cell in cells) >= 0.3 * len(cells) > 0


def test_tables_of_figures_are_distinguished_from_others():
    measured = "| a | us |\n|---|---|\n| x | 33 [32-49] |\n| y | 1,046 |\n"
    both = f"{measured}\n| a | b |\n|---|---|\n| 0 | a word |\n"
    assert [is_measured(cells) for cells in tables_of(both)] == [True, False]


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_every_table_of_figures_is_in_a_region(tables, guide):
    outside = CALCULATED.sub("", tables.REGION.sub("", guide.read_text(encoding="utf-8")))
    assert [cells for cells in tables_of(outside) if is_measured(cells)] == []


def test_every_region_has_a_benchmark_that_writes_it_and_every_benchmark_its_regions(guide_tables, tables):
    found = [name for guide in GUIDES for name in tables.tables_in(guide.read_text(encoding="utf-8"))]
    marks = sum(guide.read_text(encoding="utf-8").count("<!-- begin table") for guide in GUIDES)
    made = [name for benchmark in guide_tables.BENCHMARKS for name in benchmark.tables]
    assert sorted(found) == sorted(made)
    assert len(set(found)) == len(found) == marks


def test_every_benchmark_publishes_what_it_is_asked_for(guide_tables):
    for benchmark in guide_tables.BENCHMARKS:
        name = benchmark.module or "speed_guide"
        tree = ast.parse((ROOT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8"))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        first = [ast.unparse(c.args[0]) for c in calls if getattr(c.func, "id", "") == "publish"]
        for table in benchmark.tables:
            made_of_parts = any(part.startswith("f'speed_") and table.startswith("speed_") for part in first)
            assert repr(table) in first or made_of_parts, (name, table)


def test_a_region_is_replaced_and_the_rest_is_left(tables):
    text = "\n".join(["a", tables.region("one", "| 1 |"), "b", tables.region("two", "| 2 |"), "c"])
    new = tables.with_tables(text, {"one": "| \\1 new |", "three": "| 3 |"})
    assert new == text.replace("| 1 |", "| \\1 new |")
    assert tables.tables_in(new) == {"one": "| \\1 new |", "two": "| 2 |"}


def test_a_benchmark_that_fails_leaves_its_tables(guide_tables, tables, monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(str(tmp_path))
    guide = tmp_path / "guide.md"
    guide.write_text("\n".join(tables.region(name, "| old |") for name in ("bad", "good")))
    monkeypatch.setattr(guide_tables, "GUIDES", tmp_path)
    cases = (guide_tables.Benchmark("bad", ("bad",), 1), guide_tables.Benchmark("good", ("good",), 1))
    monkeypatch.setattr(guide_tables, "BENCHMARKS", cases)
    run = {"bad": {}, "good": {"good": "| new |"}}
    monkeypatch.setattr(guide_tables, "run", lambda benchmark, only_try: run[benchmark.module])
    assert guide_tables.write([], only_try=True) == 1
    assert tables.tables_in(guide.read_text()) == {"bad": "| old |", "good": "| old |"}
    assert guide_tables.write([]) == 1
    assert tables.tables_in(guide.read_text()) == {"bad": "| old |", "good": "| new |"}
    assert "bad" in capsys.readouterr().err
    assert guide_tables.write(["unknown"]) == 2


def test_the_tables_of_a_benchmark_are_read_from_what_it_prints(tables, capsys):
    tables.publish("one", ["a", "b"], [["x", "1"]])
    tables.publish("none", ["a"], [])
    assert tables.tables_in(capsys.readouterr().out) == {"one": "| a | b |\n|---|---|\n| x | 1 |"}
