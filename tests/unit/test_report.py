"""The report's page, from hand-written lines: what is read, drawn and escaped."""

import importlib.util
import json
import pkgutil
import re
import subprocess

import matplotlib
import numpy as np
import pytest
import tensorflow as tf

import unisono
from unisono.callbacks.monitoring.json_lines import LineFile, jsonable
from unisono.callbacks.report import facts, find_runs, read_run, render
from unisono.callbacks.report.charts import Line, chart_style, line_chart
from unisono.callbacks.report.facts import git_commit
from unisono.callbacks.report.page import slow_worker
from unisono.callbacks.report.runs import Run
from unisono.commands import report as command

FACTS = {
    "title": "A <b>bold</b> title",
    "model": {"name": "m", "trainable parameters": 1234},
    "strategy": {"strategy": "MirroredStrategy", "replicas": 2, "devices": ["CPU:0", "CPU:1"]},
    "configuration": {"epochs": 3, "optimizer": "SGD", "optimizer.learning_rate": 0.1},
    "versions": {"python": "3.11"},
    "machine": {"host": "h"},
    "summary": "Model: <m>",
}


def worker(**seconds):
    return {"steps": 10, "seconds": seconds, "memory": {"host": 10**8}, "waited": [0.5, 0.25]}


def line(event, time, epoch, step, logs, gradient_norm, **others):
    position = {"event": event, "time": time, "epoch": epoch, "step": step, "steps_per_epoch": 10}
    return {**position, "logs": logs, "learning_rate": 0.1, "gradient_norm": gradient_norm, **others}


def step(epoch, done, loss):
    return line("step", 100.0 + epoch, epoch, done, {"loss": loss}, 1.0)


def epoch(number, **logs):
    measured = {"steps": 10, "rows_per_step": 32, "elapsed": 2.0}
    workers = [worker(compute=1.5, input=0.25, callbacks=0.25)]
    return line("epoch", 101.0 + number, number, 10, logs, 0.5, **measured, workers=workers)


LINES = [
    {"event": "begin", "time": 100.0, **FACTS},
    step(0, 5, 2.0),
    epoch(0, loss=1.0, val_loss=1.5, loss_scale=32768.0, skipped_steps=1),
    step(1, 5, 0.9),
    epoch(1, loss="nan", val_loss=1.25, loss_scale=16384.0, skipped_steps=2),
    {"event": "end", "time": 103.0, "how": "finished"},
]


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def slow_of(*epochs):
    """What the report says of the workers; each epoch has (seconds waited, compute, input) of each worker."""
    lines = [LINES[0]]
    for number, each in enumerate(epochs):
        lines.append(epoch(number, loss=1.0))
        lines[-1]["workers"] = [
            {"host": f"h{i}", "steps": 10, "seconds": {"compute": compute, "input": waiting}, "memory": {}}
            | ({} if waited is None else {"waited": [waited]})
            for i, (waited, compute, waiting) in enumerate(each)
        ]
    run = Run("r")
    for each in lines:
        run.add(each)
    return slow_worker(run)


def test_slow_worker_is_the_one_that_waits_least_in_the_last_epoch():
    text = slow_of([(4.0, 10.0, 0.1), (4.2, 10.0, 0.1), (0.1, 10.0, 0.1)])
    assert text.startswith("Worker 2 on h2 makes the others wait for 40%") and "other programs" in text
    assert slow_of([(0.5, 10.0, 0.1), (0.4, 10.0, 0.1), (0.3, 10.0, 0.1)]) == ""
    assert slow_of([(0.0, 10.0, 0.1), (4.0, 10.0, 0.1)], [(4.0, 10.0, 0.1), (4.0, 10.0, 0.1)]).startswith(
        "Worker 1"
    )
    restarted = slow_of([(9.0, 10.0, 0.1), (9.0, 10.0, 0.1)], [(0.0, 10.0, 0.1), (4.0, 10.0, 0.1)])
    assert restarted.startswith("Worker 0")


def test_slow_input_of_a_worker_is_distinguished():
    assert (
        "Worker 1 on h1" in (text := slow_of([(4.0, 10.0, 0.1), (0.1, 6.0, 4.5)]))
        and "its input is slow" in text
    )
    assert slow_of([(None, 10.0, 0.1), (None, 10.0, 5.0), (None, 10.0, 0.1)]).startswith("Worker 1 on h1")
    assert slow_of([(None, 10.0, 5.0)]) == ""


def test_run_positions_steps_within_their_epoch(tmp_path):
    run = read_run(write(tmp_path / "r.jsonl", LINES))
    assert [x for x, _ in run.log("loss")] == [0.5, 1.0, 1.5, 2.0]
    assert run.log("val_loss", fine=False) == [(1.0, 1.5), (2.0, 1.25)]
    assert run.samples_per_second() == [(1.0, 160.0), (2.0, 160.0)]
    assert run.metric_names() == ["loss"]
    assert run.how == "finished"


def test_values_within_epochs_are_means_since_the_line_before_where_they_are_known(tmp_path):
    known = [{**line, "means": ["loss"]} if "logs" in line else line for line in LINES]
    run = read_run(write(tmp_path / "r.jsonl", known))
    # 5 steps of 2, then 5 more: 10 of 1
    assert run.recent("loss")[:3] == [(0.5, 2.0), (1.0, 0.0), (1.5, 0.9)]
    assert np.isnan(run.recent("loss")[3][1])
    assert [x for x, _ in read_run(write(tmp_path / "s.jsonl", LINES)).recent("loss")] == [0.5, 1.0, 1.5, 2.0]
    assert ">within epochs<" in render([run]).replace("</i>", ">")


def test_metrics_of_several_outputs_stand_in_groups_under_short_names(tmp_path):
    facts = {**FACTS, "model": {**FACTS["model"], "outputs": ["left", "left_eye"]}}
    logs = {"loss": 1.0, "left_loss": 0.5, "left_eye_loss": 0.25, "mine/rate": 2.0}
    lines = [{"event": "begin", "time": 100.0, **facts}, epoch(0, **logs)]
    page = render([read_run(write(tmp_path / "r.jsonl", lines))])
    assert re.findall("<h3>(.*?)</h3>", page) == ["left", "left_eye", "mine"]
    assert page.count("<figcaption>loss</figcaption>") == 3 and "<figcaption>rate</figcaption>" in page


def test_run_whose_last_line_was_cut_off_is_read_without_it(tmp_path):
    path = write(tmp_path / "r.jsonl", LINES[:3])
    path.write_text(path.read_text() + '{"event": "ep')
    assert len(read_run(path).epochs) == 1


def test_run_with_a_damaged_line_in_its_middle_is_rejected_with_its_number(tmp_path):
    path = write(tmp_path / "r.jsonl", LINES[:2])
    path.write_text("{oops\n" + path.read_text())
    with pytest.raises(ValueError, match="line 1 is not a line of a training report"):
        read_run(path)


def test_run_that_was_killed_and_restarted_says_so(tmp_path):
    again = {"event": "restart", "time": 110.0, **FACTS}
    run = read_run(write(tmp_path / "r.jsonl", [*LINES[:3], again, *LINES[3:]]))
    assert len(run.restarts) == 1 and run.began == 100.0
    assert "1 restart" in render([run])


def test_page_of_one_run_holds_every_chart_and_nothing_from_elsewhere(tmp_path):
    page = render([read_run(write(tmp_path / "r.jsonl", LINES))])
    charts = "loss", "learning rate", "gradient norm", "loss scale", "skipped steps", "samples per second"
    assert [title for title in charts if f"<figcaption>{title}</figcaption>" not in page] == []
    assert "1 values are not finite" in page
    assert not re.search(
        r"""(?:src|href)=["'](?!#)|url\((?!#)|@import|<script|https?://(?!www\.w3\.org/)""", page
    )
    assert "default-src 'none'" in page
    assert page == render([read_run(tmp_path / "r.jsonl")])


def test_page_of_3000_epochs_is_short_and_answers_in_the_order_of_questions(tmp_path):
    epochs = [epoch(number, loss=1.0 + number % 7) for number in range(3000)]
    epochs[1234]["logs"]["loss"] = 99.0
    page = render([read_run(write(tmp_path / "r.jsonl", [LINES[0], *epochs]))])
    questions = ["Did it learn?", "Is it healthy?", "Was it fast?", "Can I reproduce it?"]
    assert [each for each in re.findall("<h2>(.*?)</h2>", page) if each.endswith("?")] == questions
    assert "Logs of 100 of 3,000 epochs" in page and "<td>3,000</td>" in page
    assert "training ends at 4" in page and len(page) < 250_000


def test_page_escapes_what_users_wrote(tmp_path):
    page = render([read_run(write(tmp_path / "r.jsonl", LINES))])
    assert "A &lt;b&gt;bold&lt;/b&gt; title" in page and "<b>bold" not in page
    assert "Model: &lt;m&gt;" in page


def test_page_reloads_itself_only_while_the_run_is_under_way(tmp_path):
    running = render([read_run(write(tmp_path / "a.jsonl", LINES[:3]))], refresh_seconds=10)
    ended = render([read_run(write(tmp_path / "b.jsonl", LINES))], refresh_seconds=10)
    assert 'http-equiv="refresh" content="10"' in running and "refresh" not in ended


def test_page_of_several_runs_names_what_is_different(tmp_path):
    other = {**LINES[0], "configuration": {**FACTS["configuration"], "optimizer.learning_rate": 0.5}}
    files = {"a.jsonl": LINES, "b.jsonl": [other, *LINES[1:]]}
    page = render([read_run(write(tmp_path / name, lines)) for name, lines in files.items()])
    different = page.split("Different settings")[1]
    assert "optimizer.learning_rate" in different and "0.5" in different and "SGD" not in different


def test_times_add_up_to_those_of_the_run(tmp_path):
    last = {**epoch(1, loss=0.5), "report_seconds": 0.125}
    lines = [*LINES[:3], last, {"event": "end", "time": 110.0, "how": "finished"}]
    seconds = read_run(write(tmp_path / "r.jsonl", lines)).seconds()
    assert seconds == {"compute": 3.0, "input": 0.5, "callbacks": 0.375, "report": 0.125, "unaccounted": 6.0}
    page = render([read_run(tmp_path / "r.jsonl")])
    assert "this report" in page and "not measured" in page


def test_users_names_are_those_of_classes_that_exist():
    inputs = importlib.import_module("unisono.trainer.inputs")
    found = pkgutil.walk_packages(inputs.__path__, f"{inputs.__name__}.")
    modules = [importlib.import_module(module.name) for module in found]
    assert {name for name in facts._INPUTS if not any(hasattr(m, name) for m in modules)} == set()
    several = tf.distribute.MultiWorkerMirroredStrategy, tf.distribute.ParameterServerStrategy
    for strategy in (*several, type(tf.distribute.get_strategy())):
        assert strategy.__name__ in facts._STRATEGIES


def test_commit_of_a_folder_below_a_repository_of_a_work_tree_and_of_none(tmp_path):
    def git(*arguments):
        person = ["-c", "user.name=n", "-c", "user.email=e"]
        command = ["git", "-C", tmp_path / "main", *person, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    below = tmp_path / "main" / "a" / "b"
    below.mkdir(parents=True)
    assert git_commit(below) == ""
    git("init")
    assert git_commit(below) == ""
    git("commit", "--allow-empty", "-m", "first")
    git("worktree", "add", "--detach", tmp_path / "tree")
    assert git_commit(below) == git_commit(tmp_path / "tree") == git("rev-parse", "HEAD")
    assert git_commit(tmp_path / "missing") == ""


def test_time_is_shared_out_between_compute_and_waiting_for_sums(tmp_path):
    page = render([read_run(write(tmp_path / "r.jsonl", LINES))])
    assert "waiting for gradient synchronization" in page and "waiting for input" in page


def test_chart_without_points_is_empty_and_with_none_finite_says_so():
    assert line_chart("t", [Line("a", [])]) is None
    chart = line_chart("t", [Line("a", [(0.0, float("inf"))])])
    assert chart.note == "1 values, none of them finite" and not chart.svg


@pytest.mark.parametrize(
    "values", [[1.0], [0.0, 0.0], [1e-9, 1e9], [-5.0, 5.0], [1e30, 2e30], [-9e99, 9e99], [5e-324, 1.0]]
)
def test_chart_draws_any_range_whatever_style_the_program_has_set(values):
    with matplotlib.rc_context({"text.usetex": True, "figure.dpi": 1000}), chart_style():
        chart = line_chart("t", [Line("$a_", list(enumerate(values)))])
    assert "nan" not in chart.svg and "inf" not in chart.svg and chart.svg.count("<text") >= 3


@pytest.mark.parametrize("absent", ["jinja2", "matplotlib"])
def test_report_without_the_extra_is_rejected_when_it_is_made(absent, tmp_path, monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else find(name))
    with pytest.raises(ImportError, match=rf"need {absent}: pip install 'unisono\[report\]'"):
        unisono.callbacks.TrainingReport(tmp_path / "report.html")
    write(tmp_path / "report.jsonl", LINES)
    assert command.main([str(tmp_path)]) == 2 and "unisono[report]" in capsys.readouterr().err


def test_find_runs_passes_over_other_json_lines(tmp_path):
    write(tmp_path / "one" / "report.jsonl", LINES)
    write(tmp_path / "one" / "log.jsonl", [{"epoch": 0, "loss": 1.0}])
    assert [run.name for run in find_runs(tmp_path)] == ["one"]


def test_command_makes_the_page_again(tmp_path, capsys):
    write(tmp_path / "one" / "report.jsonl", LINES)
    write(tmp_path / "two" / "report.jsonl", LINES)
    assert command.main([str(tmp_path)]) == 0
    assert "2 training runs" in capsys.readouterr().out
    assert "side by side" in (tmp_path / "report.html").read_text()


def test_command_names_a_page_that_cannot_be_written(tmp_path, capsys):
    path = str(write(tmp_path / "report.jsonl", LINES))
    wrong = {tmp_path: "must be a file", "/proc/no/x.html": "'/proc/no' cannot be created (No such"}
    for output, said in wrong.items():
        with pytest.raises(SystemExit):
            command.main([path, "--output", str(output)])
        assert said in capsys.readouterr().err
    assert command.main([path, "--output", "/proc/version"]) == 1
    assert "/proc/version cannot be written (" in capsys.readouterr().err


def test_command_without_numbers_or_folder_says_so(tmp_path, capsys):
    assert command.main([str(tmp_path)]) == 1
    assert "TrainingReport writes them" in capsys.readouterr().err
    assert command.main([str(tmp_path / "nowhere")]) == 2


def test_line_file_goes_on_where_a_backup_was_made(tmp_path):
    first = LineFile(tmp_path / "sub" / "a.jsonl")
    first.write({"n": 1})
    kept = first.size
    first.write({"n": 2})
    again = LineFile(first.path)
    assert again.continue_at(kept)
    again.write({"n": 3})
    assert not again.continue_at(0)
    first.close()
    again.close()
    assert first.path.read_text() == '{"n": 1}\n{"n": 3}\n'


def test_line_file_of_a_new_run_begins_anew(tmp_path):
    for n in (1, 2):
        file = LineFile(tmp_path / "a.jsonl")
        file.write({"n": n})
        file.close()
    assert (tmp_path / "a.jsonl").read_text() == '{"n": 2}\n'


def test_json_of_numbers_that_are_not_finite_can_be_read_back():
    assert [float(v) for v in jsonable([float("inf"), 1.5])] == [float("inf"), 1.5]
    assert json.loads(json.dumps(jsonable({"x": float("nan")}))) == {"x": "nan"}
