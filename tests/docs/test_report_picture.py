"""The picture of a report shows the headings that a report has today; `make report-picture` makes it anew."""

import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def photograph(program_of_ci):
    return program_of_ci("report_picture")


def test_picture_of_a_report_is_small_and_has_the_headings_of_today(photograph):
    template = (ROOT / "callbacks" / "report" / "page.html").read_text(encoding="utf-8")
    headings = photograph.HEADING.findall(photograph.take_first_part(template))
    with photograph.Image.open(photograph.PICTURE) as picture:
        assert picture.text["headings"].splitlines() == headings and len(headings) == 3
        assert picture.width == photograph.WIDTH * photograph.SCALE
    assert photograph.PICTURE.stat().st_size < 150_000
