"""The report's page, from hand-written lines: what is read, drawn and escaped."""

import importlib.util
import itertools
import json
import pathlib
import pkgutil
import re
import subprocess

import matplotlib
import numpy as np
import pytest
import tensorflow as tf

import unisono
from unisono import callbacks
from unisono.callbacks.monitoring.json_lines import LineFile, jsonable
from unisono.callbacks.report import facts
from unisono.callbacks.report.charts import Line, chart_style, line_chart
from unisono.callbacks.report.facts import git_commit
from unisono.callbacks.report.page import render, slow_worker
from unisono.callbacks.report.runs import Run, find_runs, read_run
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


@pytest.mark.long
def test_page_of_one_run_holds_every_chart_and_nothing_from_elsewhere(tmp_path):
    page = render([read_run(write(tmp_path / "r.jsonl", LINES))])
    charts = "loss", "gradient norm", "loss scale", "skipped steps"
    assert [title for title in charts if f"<figcaption>{title}</figcaption>" not in page] == []
    flat = "learning rate", "samples per second"
    assert [title for title in flat if f"<figcaption>{title}</figcaption>" in page] == []
    assert "Constant: learning rate = 0.1; memory, MB = 100.</p>" in page
    assert "Constant: samples per second = 160.</p>" in page
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


@pytest.mark.long
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
    "values", [[1.0], [0.0, 5e-324], [1e-9, 1e9], [-5.0, 5.0], [1e30, 2e30], [-9e99, 9e99], [5e-324, 1.0]]
)
def test_chart_draws_any_range_whatever_style_the_program_has_set(values):
    with matplotlib.rc_context({"text.usetex": True, "figure.dpi": 1000}), chart_style():
        chart = line_chart("t", [Line("$a_", list(enumerate(values)))])
    assert "nan" not in chart.svg and "inf" not in chart.svg and chart.svg.count("<text") >= 3


def test_chart_of_one_value_is_left_out_and_of_one_point_is_drawn():
    with chart_style():
        flat = line_chart("t", [Line("a", [(1.0, 0.5), (2.0, 0.5)]), Line("b", [(2.0, 0.5)])])
        assert flat.svg == "" and len(flat.lines) == 2
        assert line_chart("t", [Line("a", [(1.0, 0.5)])]).svg
        assert (
            line_chart("t", [Line("a", [(1.0, 0.5), (2.0, float("inf"))])]).note == "1 values are not finite"
        )


def test_curve_that_hardly_changes_is_not_on_the_upper_edge():
    with chart_style():
        svg = line_chart("memory, MB", [Line("host", [(1.0, 500.0), (2.0, 501.0)])], whole=True).svg
    path = re.findall(r'<path d="([^"]+)" clip-path', svg)[-1]
    lowest, highest = 72 * 2.9 * (1 - 0.22), 72 * 2.9 * (1 - 0.22 - 0.75)  # of the axes, down the page
    least = min(float(y) for y in re.findall(r"[ML] [\d.]+ ([\d.]+)", path))
    assert least > highest + 0.05 * (lowest - highest)


def titles_of(svg):
    """The places that show values under the pointer: left and right edge, and the lines of each."""
    found = re.findall(
        r'<rect class="at" x="([\d.]+)" y="[\d.]+" width="([\d.]+)" .*?<title>(.*?)</title>', svg, re.S
    )
    return [(float(x), float(x) + float(width), text.splitlines()) for x, width, text in found]


def test_chart_shows_every_value_of_a_place_under_the_pointer():
    lines = [Line("a", [(1.0, 0.5), (2.0, 0.25)]), Line("b <i>", [(2.0, 0.75)])]
    with chart_style():
        places = titles_of(line_chart("t", lines, steps=1500).svg)
    assert [text for _, _, text in places] == [
        ["epoch 1, step 1,500", "a: 0.5"],
        ["epoch 2, step 3,000", "a: 0.25", "b &lt;i&gt;: 0.75"],
    ]
    (left, middle, _), (begin, right, _) = places
    assert left < begin < right < 4.8 * 72 and middle == pytest.approx(begin, abs=0.2)


def test_chart_of_many_epochs_shows_few_places_and_the_last():
    with chart_style():
        places = titles_of(line_chart("t", [Line("a", [(float(i), i % 7) for i in range(1, 3001)])]).svg)
    assert 30 < len(places) <= 60 and places[-1][2] == ["epoch 3000", "a: 4"]


def test_learning_rate_is_drawn_as_steps_over_the_epochs_that_had_it():
    with chart_style():
        svg = line_chart("t", [Line("a", [(1.0, 1.0), (2.0, 0.5), (3.0, 0.25)], steps=True)]).svg
    path = re.findall(r'<path d="([^"]+)" clip-path', svg)[-1]
    corners = [tuple(map(float, pair)) for pair in re.findall(r"[ML] (\S+) (\S+)", path)]
    flat = [(b[0] - a[0], a[1]) for a, b in itertools.pairwise(corners) if a[1] == b[1] and a != b]
    assert len(flat) == 3 and flat == sorted(flat, key=lambda each: each[1])  # three epochs, falling
    assert all(length == pytest.approx(flat[0][0], abs=0.01) for length, _ in flat)


def test_axis_has_steps_where_all_epochs_have_as_many(tmp_path):
    def labels(*steps):
        epochs = [epoch(number, loss=1.0 + number) for number in range(len(steps))]
        lines = [LINES[0], *({**each, "step": n} for each, n in zip(epochs, steps))]
        return re.findall(
            r">(epoch(?:, step)?)</text>", render([read_run(write(tmp_path / "r.jsonl", lines))])
        )

    assert labels(10, 10, 10)[0] == "epoch, step" and labels(10, 10, 7)[0] == "epoch"


def test_epochs_that_compile_are_grey(tmp_path):
    lines = [
        *({**epoch(number, loss=1.0), "elapsed": 2.0 - number} for number in range(2)),
        {"event": "restart", "time": 110.0, **FACTS},
        *({**epoch(number, loss=1.0), "time": 110.0 + number} for number in (2, 3)),
    ]
    run = read_run(write(tmp_path / "r.jsonl", [LINES[0], *lines]))
    assert run.first_epochs() == {0, 2}
    assert "grey: an epoch that also compiles the step" in render([run])


def test_page_shows_config_and_notes_escaped_and_compares_config(tmp_path):
    given = {"config": {"lr <b>": 0.5, "sizes": [1, "<i>"]}, "notes": "first <b>\nsecond"}
    run = read_run(write(tmp_path / "r.jsonl", [{**LINES[0], **given}, *LINES[1:]]))
    page = render([run])
    assert (
        "lr &lt;b&gt;" in page
        and "1, &lt;i&gt;" in page
        and 'class="notes">first &lt;b&gt;\nsecond</p>' in page
    )
    other = read_run(write(tmp_path / "s.jsonl", LINES))
    different = render([other, run]).split("Different settings")[1]
    assert "config: lr &lt;b&gt;" in different


def test_machine_has_its_gpus_and_its_job(monkeypatch):
    assert facts.read_gpu_models() == {}
    details = {"a": {"device_name": "H100"}, "b": {"device_name": "H100"}}
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: list(details))
    monkeypatch.setattr(tf.config.experimental, "get_device_details", details.get)
    for said in (
        "x86_64 Kernel Module  535.104.05  Sat Aug 19",
        "Open Kernel Module for x86_64  535.104.05  Release",
    ):
        monkeypatch.setattr(
            pathlib.Path, "read_text", lambda path, said=said: f"NVRM version: NVIDIA UNIX {said}\nGCC 12"
        )
        assert facts.read_gpu_models() == {"GPUs": "2 x H100", "GPU driver": "535.104.05"}
    environ = {
        "SLURM_JOB_ID": "7",
        "SLURM_ARRAY_JOB_ID": "5",
        "SLURM_ARRAY_TASK_ID": "2",
        "RAY_JOB_ID": "01000000",
    }
    assert facts.read_job(environ | {"SECRET": "x"}) == {
        "Slurm job": "7",
        "Slurm array": "5",
        "Slurm array task": "2",
        "Ray job": "01000000",
    }


@pytest.mark.parametrize("absent", ["jinja2", "matplotlib"])
def test_report_without_the_extra_is_rejected_when_it_is_made(absent, tmp_path, monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else find(name))
    with pytest.raises(ImportError, match=rf"need {absent}: pip install matplotlib jinja2"):
        unisono.callbacks.TrainingReport(tmp_path / "report.html")
    write(tmp_path / "report.jsonl", LINES)
    assert command.main([str(tmp_path)]) == 2 and "pip install matplotlib" in capsys.readouterr().err


def test_find_runs_passes_over_other_json_lines(tmp_path):
    write(tmp_path / "one" / "report.jsonl", LINES)
    write(tmp_path / "one" / "log.jsonl", [{"epoch": 0, "loss": 1.0}])
    assert [run.name for run in find_runs(tmp_path)] == ["one"]


def test_runs_are_named_for_the_folder_of_their_report(tmp_path):
    for name in ("lr0.1", "lr0.2"):
        write(tmp_path / name / "report.jsonl", LINES)
    write(tmp_path / "lr0.1" / "other.jsonl", LINES)
    assert [run.name for run in find_runs(tmp_path)] == ["lr0.1/other", "lr0.1", "lr0.2"]
    assert [run.name for run in find_runs(tmp_path / "lr0.1")] == ["other", "lr0.1"]
    assert [run.name for run in find_runs(tmp_path / "lr0.2" / "report.jsonl")] == ["lr0.2"]


def test_compared_reports_stand_best_first(tmp_path):
    def losses(*values, facts=LINES[0]):
        return [facts, *(epoch(i, loss=9.0, val_loss=value) for i, value in enumerate(values))]

    runs = {"a": losses(3.0, 2.0, 4.0), "b": losses("nan"), "c": losses(1.0, 5.0), "d": losses(2.0)}
    for name, lines in runs.items():
        write(tmp_path / name / "report.jsonl", lines)
    page = callbacks.compare_reports([tmp_path / name for name in "abcd"])
    assert page == tmp_path / "a" / "report.html"
    text = page.read_text()
    rows = text.split("<h2>Different settings</h2>")[0]
    assert re.findall("</i>(.)</td>", rows) == ["c", "a", "d", "b"]
    assert "c has the lowest val_loss: 1 in epoch 1, 1 lower than in a." in rows
    write(tmp_path / "e" / "report.jsonl", [LINES[0], epoch(0, loss=0.5)])  # has no validation
    page = callbacks.compare_reports([str(tmp_path / name) for name in "ae"], tmp_path / "new" / "page.html")
    assert "e has the lowest loss: 0.5 in epoch 1, 8.5 lower than in a." in page.read_text()
    other = {**LINES[0], "configuration": {**FACTS["configuration"], "loss": "mae"}}
    write(tmp_path / "c" / "report.jsonl", losses(1.0, facts=other))
    rows = callbacks.compare_reports([tmp_path / "a", tmp_path / "c"]).read_text()
    assert re.findall("</i>(.)</td>", rows)[:2] == ["a", "c"] and "different loss functions" in rows


def test_compare_reports_names_a_wrong_argument(tmp_path):
    (tmp_path / "empty").mkdir()
    write(tmp_path / "report.jsonl", LINES)
    for paths, error, said in (
        ([], ValueError, r"`paths` must be a path or a list of paths. Received: \[\]"),
        (3, ValueError, "`paths` must be"),
        ([tmp_path, 3], ValueError, "`paths` must be a path.* Received: 3"),
        (tmp_path / "nowhere", ValueError, "`paths`: .*nowhere does not exist"),
        (tmp_path / "empty", FileNotFoundError, "no numbers of a training run in .*empty"),
    ):
        with pytest.raises(error, match=said):
            callbacks.compare_reports(paths)
    (tmp_path / "mine.html").write_text("mine")
    with pytest.raises(callbacks.SaveError, match="`output` would overwrite"):
        callbacks.compare_reports(tmp_path, tmp_path / "mine.html")
    with pytest.raises(ValueError, match=r"`output` must be .*s3://a"):
        callbacks.compare_reports(tmp_path, "s3://a/page.html")


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
