"""The recorded terminal shows lines as a terminal does, and a run that was killed and has the bits of one that was not."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def terminal(program_of_ci):
    return program_of_ci("terminal")


def test_line_that_is_written_again_replaces_what_it_was(terminal):
    assert terminal.read_screen("a\r\n 1/9 long\r 2/9\x1b[K\r\nb") == ["a", " 2/9 long", "b"]
    assert terminal.KILL_AT.search("Epoch 2/2\r\n\r 79/150 -\r 80/150 ")
    assert not terminal.KILL_AT.search("Epoch 1/2\r\n\r 80/150 \r\nEpoch 2/2\r\n\r 79/150 ")


def test_picture_shows_a_killed_run_that_ends_with_the_bits_of_the_other(terminal):
    lines = re.findall(
        r'<text [^>]*class="(\w*)"[^>]*>(.*)</text>', terminal.PICTURE.read_text(encoding="utf-8")
    )
    ends = [line for kind, line in lines if kind == "same"]
    assert len(ends) == 2 and len(set(ends)) == 1
    assert [line for kind, line in lines if kind == "killed"] == ["Killed"]
    shown = [line for _, line in lines]
    assert (
        sum(", 112.1k parameters, batch 32," in line for line in shown) == 3
    )  # as the first line of fit is today
    assert sum(" tokens/s - loss: " in line for line in shown) == 5
    assert any(line.startswith("Resuming from ") for line in shown[shown.index("Killed") :])
    assert max(map(len, shown)) <= terminal.COLUMNS


def test_picture_of_a_running_epoch_is_one_of_the_same_run(terminal):
    assert terminal.HALF.search("Epoch 2/2\r\n\r 71/150 3 s left 9 tokens/s -\r 99/150 ")[0].endswith(
        " tokens/s -"
    )
    whole, half = (path.read_text(encoding="utf-8") for path in (terminal.PICTURE, terminal.PROGRESS))
    *before, running = re.findall(r"<text [^>]*>(.+)</text>", half)
    assert before == re.findall(r"<text [^>]*>(.+)</text>", whole)[: len(before)]
    assert " s left " in running and " tokens/s " in running
