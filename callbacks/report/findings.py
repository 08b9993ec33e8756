"""Say in sentences what the numbers of runs show, by the rules in `docs/guides/monitor.md`.

Where there are too few numbers for a rule, there is no sentence.
"""

import itertools
import math
import statistics
from collections.abc import Sequence

from ..monitoring.formatting import duration, number
from .runs import Points, Run

_COURSE = 3  # the fewest epochs that are a course
_RISE = 0.02  # of the lowest loss: less is noise
_FALL = 0.01  # of the lowest loss: less is a plateau
_SHARE = 0.2  # of the time: worth a change
_SKIPPED = 0.01  # of the steps: more than the search for a loss scale takes
_SAVINGS = {
    "input": "cache or prefetch the data, or read it in more parallel calls",
    "callbacks": "call slow callbacks less often",
    "validation": "validate less often (validation_freq) or on fewer batches (validation_steps)",
}


def describe_learning(run: Run) -> list[str]:
    """Describe the best epoch, the gap to the training loss, and the course."""
    name, points = find_monitored([run])
    if len(points) < 2:
        return []
    (epoch, best), (end, last), trained = lowest(points), points[-1], finite(run, "loss")
    training = dict(trained)
    said = [f"{name} was lowest in epoch {epoch:,.0f}: {number(best)}."]
    if name != "loss" and end in training:
        where = "That is" if end == epoch else f"In epoch {end:,.0f} it was {number(last)},"
        gap = last - training[end]
        said.append(f"{where} {number(abs(gap))} {'above' if gap > 0 else 'below'} the training loss.")
    after = [value for x, value in points if x > epoch]
    if len(after) >= _COURSE and statistics.fmean(after[-_COURSE:]) > best + _RISE * abs(best):
        learned = training.get(end, math.inf) < training.get(epoch, -math.inf)
        said.append(
            f"It has risen since epoch {epoch:,.0f} while the training loss has fallen, so the model overfits. Try early "
            "stopping with restore_best_weights=True, more data, or more regularization."
            if name != "loss" and learned
            else f"It has risen since epoch {epoch:,.0f}. Try a smaller learning rate."
        )
    elif late := _plateau(points):
        said.append(f"The last {late:,} epochs lowered it by less than {_FALL:.0%}, which is a plateau.")
        said.append(
            "Try a smaller learning rate or a larger model, or stop earlier."
            if _plateau(trained)
            else "The training loss is still changing, so try more data or more regularization, or stop earlier."
        )
    elif len(points) >= 2 * _COURSE and end == epoch and run.how == "finished":
        said.append("It was still falling at the end. Try more epochs.")
    return said


def _plateau(points: Points) -> int:
    """Return how many epochs, a quarter of all, have not lowered the values; 0 if they have, or are too few to say."""
    late = max(_COURSE, len(points) // 4)
    before = lowest(points[:-late])[1]
    return late if len(points) >= 2 * _COURSE and before - lowest(points)[1] < _FALL * abs(before) else 0


def describe_health(run: Run) -> list[str]:
    """Describe losses that are not finite, skipped steps, and cuts of the learning rate."""
    said = []
    if broken := [x for x, value in run.log("loss", fine=False) if not math.isfinite(value)]:
        epochs = f"{len(broken):,} of {len(run.epochs):,} epochs, first in epoch {broken[0]:,.0f}"
        said.append(f"The loss was not finite in {epochs}. Try AnomalyReport, which names the operation.")
    skipped, steps = run.log_ending_with("skipped_steps"), sum(line["steps"] for line in run.epochs)
    if skipped and 0 < (count := skipped[-1][1]) <= steps:
        said.append(f"{count:,.0f} of {steps:,} steps were skipped, because a gradient was not finite.")
        said += ["Try bfloat16, or look for the cause with AnomalyReport."] * (count > _SKIPPED * steps)
    if cuts := _find_cuts(run.value("learning_rate")):
        times = "once" if len(cuts) == 1 else f"{len(cuts):,} times"
        how = f"from {number(cuts[0][1])} to {number(cuts[-1][2])}, first in epoch {math.ceil(cuts[0][0]):,}"
        said.append(f"The learning rate was cut {times}, {how}.")
    return said


def _find_cuts(rates: Points) -> list[tuple[float, float, float]]:
    """Return (epochs done, old rate, new rate) of falls after two equal rates, and of those by half or more after a cut."""
    cuts, before = list[tuple[float, float, float]](), ""  # what the rate did before: "kept", "cut", or else
    for (_, old), (x, new) in itertools.pairwise(rates):
        is_cut = old > new and (before == "kept" or (before == "cut" and 2 * new <= old * (1 + 1e-6)))
        cuts += [(x, old, new)] * is_cut
        before = "kept" if old == new else "cut" if is_cut else ""
    return cuts


def describe_speed(run: Run) -> list[str]:
    """Describe the wait for input, other time that could be saved, and the first epoch."""
    firsts, said = run.first_epochs(), []
    later = [line for line in run.epochs if line["epoch"] not in firsts]
    used = [line["workers"][0]["seconds"] for line in later or run.epochs]
    total = sum(sum(seconds.values()) for seconds in used)
    for part, saving in _SAVINGS.items():
        share = sum(seconds.get(part, 0.0) for seconds in used) / total if total > 0 else 0.0
        if share > 0 and part == "input":
            said.append(
                f"Steps waited for input for {share:.1%} of the time{' after the first epoch' * bool(later)}."
            )
        elif share >= _SHARE:
            said.append(f"{part.capitalize()} took {share:.0%} of the time.")
        said += [f"Try to {saving}."] * (share >= _SHARE)
    if len(later) >= 2 and run.epochs[0] not in later:
        usual = statistics.median(line["elapsed"] for line in later)
        if (more := run.epochs[0]["elapsed"] - usual) > usual / 2:
            said.append(
                f"The first epoch took {duration(more)} longer than the others: it compiles the step."
            )
    return said


def describe_setup(run: Run) -> list[str]:
    """Describe what is missing to repeat the run."""
    said = []
    if run.facts["configuration"].get("keras.utils.set_random_seed") == "None":
        said.append(
            "No seed was set: call keras.utils.set_random_seed first, so that the run can be repeated."
        )
    if run.facts.get("machine", {}).get("git commit") == "none":
        said.append("The program was not in a git repository, so this page does not know its version.")
    return said


def sort_runs(runs: Sequence[Run]) -> list[Run]:
    """Sort runs by their lowest loss, the best first; those of different loss functions keep their order."""
    name, _ = find_monitored(runs)
    return list(runs) if _losses_differ(runs) else sorted(runs, key=lambda run: lowest(finite(run, name))[1])


def describe_comparison(runs: Sequence[Run]) -> list[str]:
    """Describe how far the first of sorted runs is ahead."""
    if _losses_differ(runs):
        return ["The runs have different loss functions, so they are in the order of their start."]
    name, points = find_monitored(runs)
    (epoch, best), (_, second) = lowest(points), lowest(finite(runs[1], name))
    if not math.isfinite(second):
        return []
    ahead = f"{number(second - best)} lower than" if second > best else "as low as"
    return [
        f"{runs[0].name} has the lowest {name}: {number(best)} in epoch {epoch:,.0f}, {ahead} in {runs[1].name}."
    ]


def find_monitored(runs: Sequence[Run]) -> tuple[str, Points]:
    """Return the loss by which runs are judged, of validation if all log it, with its points in the first run."""
    name = "val_loss" if all(run.log("val_loss", fine=False) for run in runs if run.epochs) else "loss"
    return name, finite(runs[0], name)


def finite(run: Run, name: str) -> Points:
    """Return the finite values of a log at the ends of epochs."""
    return [point for point in run.log(name, fine=False) if math.isfinite(point[1])]


def lowest(points: Points) -> tuple[float, float]:
    """Return the first point with the lowest value; infinity without points."""
    return min(points, key=lambda point: point[1], default=(0.0, math.inf))


def _losses_differ(runs: Sequence[Run]) -> bool:
    losses = [run.facts["configuration"].get("loss") for run in runs]
    return any(a != b for a, b in itertools.pairwise(losses))
