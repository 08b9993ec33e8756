"""The drawings of the documentation are what `make drawings` makes of their programs."""

import importlib
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
    text = str(drawings.draw_schedules())
    assert "stage 0 keeps the activations of 8 micro-batches, stage 3 of 8<" in text
    assert "stage 0 keeps the activations of 4 micro-batches, stage 3 of 1<" in text


def test_every_picture_is_small_shown_and_made_by_a_command(program_of_ci):
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
    }  # by benchmarks.guide_chart and other programs
    drawn = {pathlib.Path(path).name for path in program_of_ci("notebooks").PICTURES.values()}
    assert pictures == made | drawn | set(drawings.PICTURES)
    assert max(drawings.ASSETS.joinpath(name).stat().st_size for name in pictures) < 150_000
