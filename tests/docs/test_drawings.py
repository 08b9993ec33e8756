"""The drawings of the documentation are what `make drawings` makes of their programs."""

import importlib.util
import pathlib
import re
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
with pytest.MonkeyPatch.context() as patch:
    patch.setattr(sys, "path", [str(ROOT / ".ci"), *sys.path])
    drawings = importlib.import_module("drawings")


@pytest.mark.parametrize("name", drawings.PICTURES)
def test_drawing_is_that_of_its_program(name):
    assert (drawings.ASSETS / name).read_text(encoding="utf-8") == str(drawings.PICTURES[name]())


def test_drawn_batch_is_cut_as_fit_cuts_it():
    text = str(drawings.draw_batch(samples=7, replicas=2))
    assert "samples 0 to 2<" in text and "samples 3 to 6<" in text


def test_drawn_schedules_are_those_of_the_pipeline():
    gpipe, alternating = (drawings._schedule(4, 8, most) for most in (8, 4))
    assert (
        max(end for *_, end in gpipe) == max(end for *_, end in alternating) == 33
    )  # 3 of 11 parts are bubble
    for passes, most in ((gpipe, 8), (alternating, 4)):
        kept, seen = 0, []
        for stage, back, *_ in sorted(passes, key=lambda each: each[3]):
            kept += (1 - 2 * back) * (stage == 0)
            seen.append(kept)
        assert len(passes) == 64 and max(seen) == most


def test_every_picture_is_small_shown_and_made_by_a_command():
    pictures = {path.name for path in drawings.ASSETS.iterdir() if path.suffix in (".svg", ".png")}
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = {
        name
        for page in pages
        for name in re.findall(r"assets/(\w+\.\w+)\)", page.read_text(encoding="utf-8"))
    }
    assert pictures == shown | {"logo.svg"}
    made = {
        "speed.png",
        "report.png",
        "resume.svg",
        "progress.svg",
    }  # benchmarks.guide_chart, report-picture, terminal
    spec = importlib.util.spec_from_file_location("notebooks", ROOT / ".ci" / "notebooks.py")
    notebooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(notebooks)
    drawn = {pathlib.Path(path).name for path in notebooks.PICTURES.values()}
    assert pictures == made | drawn | set(drawings.PICTURES)
    assert max(drawings.ASSETS.joinpath(name).stat().st_size for name in pictures) < 150_000
