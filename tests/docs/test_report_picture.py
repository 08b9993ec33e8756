"""The picture of a report shows the headings that a report has today; `make report-picture` makes it anew."""

import importlib.util
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def photograph():
    spec = importlib.util.spec_from_file_location("report_picture", ROOT / ".ci" / "report_picture.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_picture_of_a_report_is_small_and_has_the_headings_of_today(photograph):
    template = (ROOT / "callbacks" / "report" / "page.html").read_text(encoding="utf-8")
    headings = photograph.HEADING.findall(photograph.take_first_part(template))
    with photograph.Image.open(photograph.PICTURE) as picture:
        assert picture.text["headings"].splitlines() == headings and len(headings) == 3
        assert picture.width == photograph.WIDTH * photograph.SCALE
    assert photograph.PICTURE.stat().st_size < 150_000
