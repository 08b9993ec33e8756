"""The sentences of the report, from hand-written numbers: each rule of `docs/guides/monitor.md`, around its limit."""

import pytest

from unisono.callbacks.report import findings
from unisono.callbacks.report.runs import Run

CONFIGURATION = {"epochs": 3, "loss": "mse", "keras.utils.set_random_seed": "1"}


def run_of(losses, val_losses=(), how="finished", rates=(), skipped=(), seconds=(), elapsed=(), **facts):
    """A run with one line for each epoch of 100 steps, which ends at second 1, 2, ..."""
    run = Run("r")
    run.add({"event": "begin", "time": 0.0, "configuration": CONFIGURATION, **facts})
    for i, loss in enumerate(losses):
        logs = {"loss": loss} | ({"val_loss": val_losses[i]} if i < len(val_losses) else {})
        logs |= {"skipped_steps": skipped[i]} if skipped else {}
        line = {"epoch": i, "step": 100, "steps": 100, "steps_per_epoch": 100, "logs": logs}
        line |= {"learning_rate": rates[i] if rates else 0.1, "elapsed": elapsed[i] if elapsed else 1.0}
        workers = [{"seconds": seconds[i] if seconds else {"compute": 1.0}}]
        run.add({"event": "epoch", "time": i + 1.0, **line, "workers": workers})
    if how:
        run.add({"event": "end", "time": 99.0, "how": how})
    return run


def learning(*losses, **others):
    return " ".join(findings.describe_learning(run_of(*losses, **others)))


@pytest.mark.parametrize("losses", [[], [1.0], [float("nan")] * 5])
def test_learning_of_too_few_numbers_is_not_described(losses):
    assert learning(losses) == learning(losses, losses) == ""


def test_learning_has_the_best_epoch_and_the_gap_to_the_training_loss():
    assert learning([3.0, 2.0]) == "loss was lowest in epoch 2: 2."
    assert learning([3.0, 2.0], [3.0, 2.5]) == (
        "val_loss was lowest in epoch 2: 2.5. That is 0.5 above the training loss."
    )
    assert learning([3.0, 2.0, 2.0], [1.0, 1.25, float("nan")]) == (
        "val_loss was lowest in epoch 1: 1. In epoch 2 it was 1.25, 0.75 below the training loss."
    )


def test_learning_that_overfits_says_so_only_after_three_higher_epochs():
    rises = [1.0, 0.5, 0.6, 0.7, 0.8]
    text = learning([5.0, 4.0, 3.0, 2.0, 1.0], rises)
    assert "risen since epoch 2 while the training loss has fallen, so the model overfits" in text
    assert "overfits" not in learning([5.0, 4.0, 3.0, 2.0], rises[:4])
    assert "overfits" not in learning([5.0, 4.0, 3.0, 2.0, 1.0], [1.0, 0.5, 0.505, 0.505, 0.505])
    diverges = learning([5.0, 1.0, 3.0, 4.0, 5.0], rises)
    assert "overfits" not in diverges and "Try a smaller learning rate" in diverges
    assert "risen since epoch 2. Try a smaller" in learning([5.0, 1.0, 3.0, 4.0, 5.0])


def test_learning_on_a_plateau_depends_on_the_training_loss():
    falls, stands = [6.0, 5.0, 4.0, 3.0, 2.0, 1.0], [4.0, 2.0, 1.0, 1.0, 0.995, 0.995]
    assert "The last 3 epochs lowered it by less than 1%, which is a plateau. Try a smaller" in learning(
        stands
    )
    assert "plateau. Try a smaller learning rate" in learning(stands, stands)
    assert "plateau. The training loss is still changing, so try more data" in learning(falls, stands)
    assert "plateau" not in learning(stands[:5])
    assert "plateau" not in learning([4.0, 2.0, 1.0, 1.0, 0.985, 0.985])
    assert "The last 5 epochs" in learning([30.0 - i for i in range(15)] + [15.9] * 5)


def test_learning_that_goes_on_to_the_end_of_a_finished_run_asks_for_more_epochs():
    falls = [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]
    assert learning(falls).endswith("It was still falling at the end. Try more epochs.")
    for how in ("", "stopped early", "ended by an error"):
        assert "falling" not in learning(falls, how=how)
    assert "falling" not in learning(falls[:5]) and "falling" not in learning([*falls, 1.01])


def test_health_counts_losses_that_are_not_finite():
    assert findings.describe_health(run_of([1.0, 1.0])) == []
    (text,) = findings.describe_health(run_of([1.0, float("nan"), float("inf")]))
    assert text.startswith("The loss was not finite in 2 of 3 epochs, first in epoch 2. Try AnomalyReport")


def test_health_counts_skipped_steps_and_looks_for_a_cause_above_one_percent():
    assert findings.describe_health(run_of([1.0] * 3, skipped=[0, 0, 0])) == []
    few = "3 of 300 steps were skipped, because a gradient was not finite."
    assert findings.describe_health(run_of([1.0] * 3, skipped=[3, 3, 3])) == [few]
    assert "bfloat16" in findings.describe_health(run_of([1.0] * 3, skipped=[3, 3, 4]))[-1]
    assert findings.describe_health(run_of([1.0], skipped=[500])) == []  # of fits before this one


def test_health_counts_cuts_of_the_learning_rate_and_no_schedule():
    assert findings.describe_health(run_of([1.0] * 4, rates=[0.4, 0.3, 0.2, 0.1])) == []
    assert findings.describe_health(run_of([1.0] * 4, rates=[0.1, 0.1, 0.2, 0.3])) == []
    once = "The learning rate was cut once, from 0.1 to 0.05, first in epoch 3."
    assert findings.describe_health(run_of([1.0] * 3, rates=[0.1, 0.1, 0.05])) == [once]
    twice = findings.describe_health(run_of([1.0] * 6, rates=[0.1, 0.1, 0.05, 0.05, 0.05, 0.01]))
    assert twice == ["The learning rate was cut 2 times, from 0.1 to 0.01, first in epoch 3."]
    rates = [0.1, 0.1, 0.01, 0.01, 0.001, 0.0001]
    in_a_row = findings.describe_health(run_of([1.0] * 6, rates=rates))
    assert in_a_row == ["The learning rate was cut 3 times, from 0.1 to 0.0001, first in epoch 3."]
    assert "cut once" in findings.describe_health(run_of([1.0] * 5, rates=[0.4, 0.4, 0.3, 0.2, 0.15]))[0]


def test_speed_has_the_wait_for_input_without_the_first_epoch():
    def speed(*inputs):
        seconds = [{"input": each, "compute": 1.0 - each} for each in inputs]
        return findings.describe_speed(run_of([1.0] * len(inputs), seconds=seconds))

    assert findings.describe_speed(run_of([1.0])) == []
    assert speed(0.1) == ["Steps waited for input for 10.0% of the time."]
    assert speed(0.9, 0.19) == ["Steps waited for input for 19.0% of the time after the first epoch."]
    assert speed(0.9, 0.25)[1].startswith("Try to cache or prefetch")


def test_speed_names_validation_and_callbacks_from_a_fifth_of_the_time():
    def speed(**seconds):
        return " ".join(findings.describe_speed(run_of([1.0], seconds=[seconds])))

    assert speed(compute=0.62, validation=0.19, callbacks=0.19) == ""
    assert speed(compute=0.7, validation=0.3) == (
        "Validation took 30% of the time. Try to validate less often (validation_freq) or on fewer batches "
        "(validation_steps)."
    )
    assert speed(compute=0.7, callbacks=0.3).startswith("Callbacks took 30% of the time. Try to call")


def test_speed_of_the_first_epoch_is_compared_with_the_median_of_the_others():
    def speed(*elapsed):
        return findings.describe_speed(run_of([1.0] * len(elapsed), elapsed=elapsed))

    assert speed(5.0, 1.0, 2.0, 9.0) == [
        "The first epoch took 3.0 s longer than the others: it compiles the step."
    ]
    assert speed(5.0, 1.0) == speed(3.0, 2.0, 2.0) == []


def test_setup_says_what_is_missing():
    assert findings.describe_setup(run_of([])) == []
    bare = run_of([], configuration={"keras.utils.set_random_seed": "None"}, machine={"git commit": "none"})
    seed, commit = findings.describe_setup(bare)
    assert "No seed was set" in seed and "not in a git repository" in commit


def test_comparison_says_nothing_of_runs_without_a_finite_loss():
    runs = [run_of([1.0, 2.0]), run_of([float("nan")]), run_of([])]
    assert findings.sort_runs(runs[::-1])[0] is runs[0]
    assert findings.describe_comparison(runs) == []
    equal = findings.describe_comparison([runs[0], run_of([1.0])])
    assert equal == ["r has the lowest loss: 1 in epoch 1, as low as in r."]
