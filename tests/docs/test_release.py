"""A release has every module and one version, which agrees everywhere; the badge and the citation are correct."""

import pathlib
import re
import runpy
import tomllib

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
problems = runpy.run_path(str(ROOT / ".ci" / "release.py"), run_name="release")["problems"]
RIGHT = {
    "version": "1.2.0",
    "tags": ["v1.2.0"],
    "changes": "",
    "citation": "title: x\nversion: 1.2.0\n",
    "changelog": "# Changelog\n\n## [Unreleased]\n\n## [1.2.0] - 2030-01-02\n\n- All.\n",
}


def test_a_tagged_commit_with_one_version_is_released():
    assert problems(**RIGHT) == []
    assert problems(**{**RIGHT, "changelog": "## [1.2.0] - 2030-01-02\n\n- All.\n"}) == []


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"tags": []}, "needs the tag v1.2.0, but it has none"),
        ({"tags": ["v1.1.0"]}, "its tags are v1.1.0"),
        ({"changes": " M README.md\n"}, "differ from the commit"),
        ({"citation": "version: 1.2.00\n"}, "CITATION.cff names another version"),
        ({"changelog": "## [1.1.0] - 2030-01-02\n"}, "no heading `## \\[1.2.0\\]"),
        ({"changelog": "## [Unreleased]\n- New.\n## [1.2.0] - 2030-01-02\n"}, "entries under Unreleased"),
    ],
)
def test_what_stands_against_a_release_is_named(wrong, said):
    (sentence,) = problems(**{**RIGHT, **wrong})
    assert re.search(said, sentence)


def test_the_citation_names_the_newest_release():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version, day = re.search(r"^## \[([\d.]+)\] - (.*)$", changelog, re.MULTILINE).groups()
    assert f"\nversion: {version}\ndate-released: {day}\n" in citation


def test_the_badges_of_the_readme_are_those_of_workflows_that_exist():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    badges = re.findall(r"actions/workflows/([\w.]+)/badge\.svg", readme)
    assert badges
    assert [name for name in badges if not (ROOT / ".github" / "workflows" / name).exists()] == []


def test_the_chart_and_the_ratios_of_the_readme_are_those_of_the_benchmarks():
    chart = runpy.run_path(str(ROOT / "benchmarks" / "guide_chart.py"), run_name="chart")
    models, medians = chart["medians_in"](chart["GUIDE"].read_text(encoding="utf-8"))
    assert models == ["MLP", "CNN", "transformer"]
    assert set(chart["SHOWN"]) <= set(medians)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    row = next(line for line in readme.splitlines() if line.startswith("| step time relative to Unisono"))
    ours, *others = [[float(x) for x in cell.split(",")] for cell in row.split("|")[2:6]]
    assert ours == [1]
    for name, cells in zip(("Keras 3 on TensorFlow", "tf_keras", "Lightning fit"), others):
        ratios = [value / own for value, own in zip(medians[name], medians["`unisono` fit"])]
        assert cells == [round(ratio, 0 if ratio > 10 else 1) for ratio in ratios]


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS = ("trainer", "callbacks", "state", "mixed_precision", "optimizers", "distribute", "compat")


def test_the_package_has_a_relative_link_to_every_folder():
    links = {path.name: str(path.readlink()) for path in (ROOT / "unisono").iterdir() if path.is_symlink()}
    assert links == {folder: f"../{folder}" for folder in FOLDERS}


def test_every_folder_with_code_has_an_init_file():
    for folder in (*FOLDERS, "unisono"):
        for path in (ROOT / folder).rglob("*.py"):
            assert (path.parent / "__init__.py").exists(), path


def test_the_version_has_one_place_and_the_package_is_typed():
    import unisono

    assert PROJECT["project"]["dynamic"] == ["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?(\.dev\d+)?", unisono.__version__)
    assert (ROOT / "unisono" / "py.typed").exists()


def test_the_oldest_versions_are_the_same_everywhere():
    oldest = dict(re.match(r"(\w+)>=([0-9.]+)", text).groups() for text in PROJECT["project"]["dependencies"])
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    assert re.search(rf"tensorflow=={oldest['tensorflow']}\.\S+ keras=={oldest['keras']}\.", workflow)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"TensorFlow {oldest['tensorflow']}" in readme and f"Keras {oldest['keras']}" in readme
