"""The drawings of the documentation are what `make drawings` makes of their programs."""

import importlib.util
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("drawings", ROOT / ".ci" / "drawings.py")
drawings = importlib.util.module_from_spec(spec)
spec.loader.exec_module(drawings)


@pytest.mark.parametrize("name", drawings.PICTURES)
def test_drawing_is_that_of_its_program(name):
    assert (drawings.ASSETS / name).read_text(encoding="utf-8") == str(drawings.PICTURES[name]())


def test_drawn_batch_is_cut_as_fit_cuts_it():
    text = str(drawings.draw_batch(samples=7, replicas=2))
    assert "samples 0 to 2<" in text and "samples 3 to 6<" in text
