"""The records that workers write about themselves: written atomically, and completed at any exit."""

import contextlib
import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from helpers import in_threads

from unisono.distribute.workers import records
from unisono.distribute.workers.error_text import Blame, essence, is_own_file, own_lines
from unisono.distribute.workers.records import ErrorRecord, Record, Recorder, error_record

ERROR = ErrorRecord("ValueError", "no", "f (train.py:3)", 5.0, Blame(("worker 1",), ("worker 2", "leader")))
RECORD = Record("worker 1", 4321, 12.5, "epoch 1, step 2", 7, 11.0, "save (train.py:9)", ERROR)


def test_record_is_read_as_it_was_written_and_leaves_no_other_file(tmp_path):
    for each in (RECORD, dataclasses.replace(RECORD, error=None)):
        records.write(tmp_path, each)
        assert records.read(tmp_path, 4321) == each
    assert [path.name for path in tmp_path.iterdir()] == [records.path_of(tmp_path, 4321).name]
    assert records.read(tmp_path, 4322) is None


def test_record_is_of_bounded_size_whatever_the_error_is(tmp_path):
    class Endless(Exception):
        def __str__(self):
            return "beginning" + "\x1b" * 10**6 + "end"

    worst = error_record(Endless())
    records.write(
        tmp_path, dataclasses.replace(RECORD, error=worst, place="x" * 10**6, position="\0" * 10**6)
    )
    assert records.path_of(tmp_path, 4321).stat().st_size < 2**16
    text = records.read(tmp_path, 4321).error.text
    assert text.startswith("beginning") and text.endswith("end")


def test_names_of_lost_workers_are_cut_in_number_and_length(tmp_path):
    lost = Blame(tuple(f"worker {n} {'x' * 100}" for n in range(100)))
    records.write(tmp_path, dataclasses.replace(RECORD, error=dataclasses.replace(ERROR, blame=lost)))
    found = records.read(tmp_path, 4321).error.blame.lost
    assert len(found) == 32 and found[0].startswith("worker 0 xxx") and max(map(len, found)) < 70


def as_json(**changed):
    return json.dumps(dataclasses.asdict(RECORD) | changed)


@pytest.mark.parametrize(
    "content",
    [
        *("", "null", "[]", "{", "[" * 60_000, "9" * 5000, '"x"', "\0" * 100, "{}", " " * 70_000 + as_json()),
        *(as_json(alive="now"), as_json(alive=float("nan")), as_json(alive=10**400), as_json(pid=True)),
        *(as_json(error=[]), as_json(error={}), as_json(collectives=0.5), as_json(place=3)),
        as_json(error=dataclasses.asdict(ERROR) | {"blame": {"lost": "worker 1", "reported_by": []}}),
        as_json(error=dataclasses.asdict(ERROR) | {"blame": {"lost": [1], "reported_by": []}}),
    ],
)
def test_file_that_is_no_record_is_none(tmp_path, content):
    records.path_of(tmp_path, 4321).write_text(content)
    assert records.read(tmp_path, 4321) is None


def test_pipe_link_and_folder_are_no_records_and_nothing_waits_for_them(tmp_path):
    path = records.path_of(tmp_path, 4321)
    for make in (lambda: os.mkfifo(path), lambda: path.symlink_to("/dev/zero"), path.mkdir):
        path.unlink(missing_ok=True)
        make()
        assert records.read(tmp_path, 4321) is None


def test_error_that_came_from_a_lost_peer_is_a_consequence_however_it_is_wrapped():
    try:
        try:
            raise RuntimeError("aborted by: lost contact with worker 1: worker 0 has waited")
        except RuntimeError:
            raise KeyError("in the handler") from None
    except KeyError as error:
        found = error_record(error)
    assert (found.kind, found.blame.lost) == ("KeyError", ("worker 1",))
    assert "in test_error" not in found.place and found.place.startswith("test_error_that_came_from")


def chain(*errors):
    """The first error, which each next one has caused."""
    for error, cause in itertools.pairwise(errors):
        error.__cause__ = cause
    return errors[0]


LOST, PASSED_ON = "lost contact with worker 1: worker 2 has waited", "worker 3 failed: ValueError: no"


def test_cause_that_names_a_lost_worker_counts_before_what_another_worker_said():
    found = error_record(chain(KeyError("x"), ValueError(PASSED_ON), RuntimeError(LOST)))
    assert found.blame == Blame(("worker 1",))
    assert error_record(chain(KeyError("x"), ValueError(PASSED_ON))).blame == Blame((), ("worker 3",))


@pytest.mark.parametrize("depth, seen", [(19, True), (20, False)])
def test_only_so_many_causes_are_read(depth, seen):
    found = error_record(chain(*(KeyError("x") for _ in range(depth)), RuntimeError(LOST)))
    assert (found.blame is not None) == seen


@pytest.mark.parametrize(
    "text, tries_again",
    [("my own mistake", False), (PASSED_ON, False), (LOST, True), ("a worker hangs in it", True)],
)
def test_process_asks_for_another_attempt_unless_it_is_known_what_failed(text, tries_again):
    with pytest.raises(SystemExit) if tries_again else contextlib.nullcontext() as exit:
        records.exit_for_another_attempt(RuntimeError(text))
    assert not tries_again or exit.value.code == os.EX_TEMPFAIL == 75


def test_first_error_of_a_process_is_kept(tmp_path):
    mine = Recorder()
    mine._folder = tmp_path
    for text in ("first", "second"):
        mine._record_failure(ValueError(text))
    assert records.read(tmp_path, os.getpid()).error.text == "first"


def test_error_of_another_thread_does_not_end_the_program(monkeypatch):
    ended = []
    monkeypatch.setattr(sys, "excepthook", lambda *_: None)
    records.at_fatal_error(ended.append)
    errors = [ValueError("in a thread"), ValueError("in the program")]
    with in_threads(lambda: sys.excepthook(ValueError, errors[0], None)):
        pass
    assert ended == []
    sys.excepthook(ValueError, errors[1], None)
    assert ended == errors[1:]


def test_error_whose_text_fails_is_recorded_too():
    class Broken(Exception):
        def __str__(self):
            raise RuntimeError

    assert error_record(Broken()).text == ""


def run(tmp_path, body):
    """The record of a Python program without TensorFlow, and its exit status."""
    program = tmp_path / "program.py"
    start = f"from unisono.distribute.workers import records\nrecords.start({str(tmp_path)!r}, 'worker 3')\n"
    program.write_text(start + textwrap.dedent(body))
    process = subprocess.run([sys.executable, program], capture_output=True, text=True)
    (path,) = tmp_path.glob("*.json")
    found = records.read(tmp_path, int(path.stem.rpartition("-")[2]))
    assert found.task == "worker 3" and "tensorflow" not in process.stderr
    return found, process.returncode


RAISES = """
    def load():
        raise ValueError("my own mistake")
    with records.report_position(lambda: "epoch 1, step 5"):
        load()
"""
HOOK = """
    import sys
    sys.excepthook = lambda *error: None
    raise ValueError("my own mistake")
"""
SHOWN = """
    import sys
    try:
        raise ValueError("my own mistake")
    except ValueError:
        sys.excepthook(*sys.exc_info())
"""


@pytest.mark.long
def test_each_end_of_a_program_leaves_its_record(tmp_path):
    ends = {
        "raises": (RAISES, 1),
        "hook": (HOOK, 1),
        "shown": (SHOWN, 0),
        "exit": ("raise SystemExit(3)", 3),
        "_exit": ("import os; os._exit(4)", 4),
        "killed": ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
    }
    found = {}
    for name, (body, status) in ends.items():
        (tmp_path / name).mkdir()
        found[name], code = run(tmp_path / name, body)
        assert code == status, name
    for name in ("raises", "hook"):
        error = found[name].error
        assert (error.kind, error.text, error.blame) == ("ValueError", "my own mistake", None), name
    assert found["raises"].error.place.startswith("load (")
    assert found["raises"].position == "epoch 1, step 5"
    errors = {name for name, each in found.items() if each.error is not None}
    assert errors == {"raises", "hook"}


def test_record_lives_while_the_program_hangs_and_says_where(tmp_path, stop_clock):
    clock = stop_clock(records, 5.0)
    mine = Recorder()
    mine._folder = tmp_path
    mine.at_collective(5)
    clock.now = 7.0
    with mine.report_position(lambda: "epoch 2, step 9"):
        mine.update()
    mine.update()
    found = records.read(tmp_path, os.getpid())
    assert (found.collectives, found.position) == (5, "epoch 2, step 9")
    assert (found.since, found.alive) == (5.0, 7.0)
    assert found.place.startswith("test_record_lives_while")


def test_folder_that_cannot_be_written_ends_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    mine = Recorder()
    mine._folder = tmp_path / "file"
    mine.update()
    assert os.listdir(tmp_path) == ["file"]


# What a program printed; the lines with ">" are its own.
PRINTED = """\
  2026-11-21 22:11:32.123456: I tensorflow/core/platform/cpu_feature_guard.cc:210] This TensorFlow binary is optimized
  To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the appropriate flags.
  WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
  I0000 00:00:1795298702.834370   19672 port.cc:153] oneDNN custom operations are on.
  E0000 00:00:1795298713.317721   19672 cuda_platform.cc:52] failed call to cuInit: INTERNAL
> I1121 22:11:32.123456 139 train.py:12] of the program's own log
> loading
> Traceback (most recent call last):
>   File "/home/me/train.py", line 42, in <module>
>     model.fit(x, y,
                ^^^^^
    File "/v/lib/python3.11/site-packages/keras/src/utils/traceback_utils.py", line 122, in error_handler
      raise e.with_traceback(filtered_tb) from None
>   File "/home/me/callback.py", line 7, in on_epoch_end
>     save()
> ValueError: my own mistake
>   with a second line
> F0000 00:00:1795298713.317721   19672 check.cc:52] Check failed: ok
      @     0x7f2a  raise
  Graph execution error:

  Detected at node CollectiveReduceV2 defined at (most recent call last):
    File "/home/me/train.py", line 42, in <module>

    File "/v/lib/python3.11/site-packages/keras/src/x.py", line 1, in y

> Collective ops is aborted by: lost contact with worker 1
  The error could be from a previous operation. Restart your program to reset.
  \t [[{{node CollectiveReduceV2}}]] [Op:__inference_add_116]
  \t [[while/loop_body_control/_50/_37]]
  2 root error(s) found.
  0 successful operations.
"""


def test_own_lines_are_without_tensorflows_notices_and_without_frames_of_libraries():
    lines = PRINTED.splitlines()
    own = [line[2:] for line in lines if line.startswith("> ")]
    assert own_lines([line[2:] for line in lines]) == own


def test_frames_of_ours_and_of_python_are_not_the_users():
    for path in (records.__file__, json.__file__, "<frozen runpy>", pytest.__file__):
        assert not is_own_file(path)
    assert is_own_file(__file__) and is_own_file("<stdin>") and is_own_file("train.py")


def test_essence_is_all_of_a_text_that_is_the_engines_alone():
    assert essence("Graph execution error:\n\nno such key") == "no such key"
    assert essence("Graph execution error:") == "Graph execution error:"
