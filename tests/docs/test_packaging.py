"""A release contains every module once, defines its version once, and CI tests the oldest versions it promises."""

import pathlib
import re
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS = ("trainer", "callbacks", "mixed_precision", "optimizers", "distribute", "compat")


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
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", unisono.__version__)
    assert (ROOT / "unisono" / "py.typed").exists()


def test_the_oldest_versions_are_the_same_everywhere():
    oldest = dict(re.match(r"(\w+)>=([0-9.]+)", text).groups() for text in PROJECT["project"]["dependencies"])
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    assert re.search(rf"tensorflow=={oldest['tensorflow']}\.\S+ keras=={oldest['keras']}\.", workflow)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"TensorFlow {oldest['tensorflow']}" in readme and f"Keras {oldest['keras']}" in readme
