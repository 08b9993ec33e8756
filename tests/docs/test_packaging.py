"""What is released: no folder is forgotten, the version has one place, the workflow tests the oldest versions promised."""

import pathlib
import re
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS = ("unisono", "trainer", "callbacks", "optimizers", "mixed_precision", "distribute")


def test_every_folder_with_code_is_a_package_of_the_wheel():
    packages = PROJECT["tool"]["setuptools"]["packages"]
    found = {
        path.parent.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("__init__.py")
    }
    named = {"unisono" if str(f) == "unisono" else f"unisono.{'.'.join(f.parts)}" for f in found}
    assert set(packages) == named
    for package, folder in PROJECT["tool"]["setuptools"]["package-dir"].items():
        assert package == "unisono" or package == "unisono." + folder.replace("/", ".")


def test_every_folder_with_code_has_an_init_file():
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            assert (path.parent / "__init__.py").exists(), path


def test_the_version_has_one_place_and_the_package_is_typed():
    import unisono

    assert PROJECT["project"]["dynamic"] == ["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", unisono.__version__)
    assert (ROOT / "unisono" / "py.typed").exists()
    assert PROJECT["tool"]["setuptools"]["package-data"]["unisono"] == ["py.typed"]


def test_the_oldest_versions_are_the_same_everywhere():
    oldest = dict(re.match(r"(\w+)>=([0-9.]+)", text).groups() for text in PROJECT["project"]["dependencies"])
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    assert re.search(rf"tensorflow=={oldest['tensorflow']}\.\S+ keras=={oldest['keras']}\.", workflow)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"TensorFlow {oldest['tensorflow']} and newer, Keras {oldest['keras']} and newer" in readme
