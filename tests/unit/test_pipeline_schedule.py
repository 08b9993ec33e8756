"""Schedules, partition arithmetic, and the simulation with its plot, compared with hand-computed numbers."""

import itertools
import random
import xml.etree.ElementTree as ElementTree

import pytest

from unisono.distribute.pipeline.balance import balance, stage_costs
from unisono.distribute.pipeline.schedule import (
    SCHEDULES,
    find_needed,
    find_rematerialized,
    forward_only,
    peak_activations,
    simulate,
    time_jobs,
)
from unisono.distribute.pipeline.timeline import Timeline

SIZES = list(itertools.product([1, 2, 3, 4, 7], [1, 2, 3, 4, 8]))
CASES = [(name, *size) for name in SCHEDULES for size in SIZES]


def test_schedule_runs_every_job_once_and_after_what_it_needs():
    for name, stages, micro_batches in CASES:
        jobs = SCHEDULES[name](stages, micro_batches)
        assert len(jobs) == len(set(jobs)) == 2 * stages * micro_batches
        assert len({(job.start, job.stage) for job in jobs}) == len(jobs), "a stage runs one job at a time"
        start = {(job.stage, job.micro_batch, job.kind): job.start for job in jobs}
        for job in jobs:
            for need in find_needed(job.stage, job.micro_batch, job.kind, stages):
                assert start[need] < job.start


def _length(jobs):
    return max(job.start for job in jobs) + 1


def _on_stage(jobs, stage):
    return [job for job in sorted(jobs, key=lambda job: job.start) if job.stage == stage]


def test_schedule_bubble_is_the_papers():
    for name, stages, micro_batches in CASES:
        jobs = SCHEDULES[name](stages, micro_batches)
        assert _length(jobs) == 2 * (micro_batches + stages - 1)
        bubble = 1.0 - len(jobs) / (stages * _length(jobs))
        assert bubble == pytest.approx((stages - 1) / (micro_batches + stages - 1))


def test_peak_activations_gpipe_keeps_all_and_1f1b_at_most_the_stages_ahead():
    for stages, micro_batches in SIZES:
        assert peak_activations(SCHEDULES["gpipe"](stages, micro_batches)) == [micro_batches] * stages
        expected = [min(micro_batches, stages - k) for k in range(stages)]
        assert peak_activations(SCHEDULES["1f1b"](stages, micro_batches)) == expected


def test_both_schedules_run_backward_passes_in_the_same_order():
    for name in SCHEDULES:
        order = [j.micro_batch for j in _on_stage(SCHEDULES[name](3, 5), 1) if j.kind == "backward"]
        assert order == [0, 1, 2, 3, 4]


def test_forward_only_takes_m_plus_k_minus_1_passes():
    assert _length(forward_only(3, 5)) == 7


def test_timed_orders_that_wait_for_each_other_are_rejected():
    with pytest.raises(ValueError, match="make stages wait for each other"):
        time_jobs([[("backward", 0), ("forward", 0)]])


def _best_by_trying(costs, stages):
    n = len(costs)
    ways = itertools.combinations(range(1, n), stages - 1)
    cuts = [[stop - start for start, stop in itertools.pairwise([0, *way, n])] for way in ways]
    return min(max(stage_costs(costs, sizes)) for sizes in cuts)


def test_balance_slowest_stage_is_the_smallest_of_all_cuts():
    rng = random.Random(3)
    for _ in range(60):
        costs = [rng.choice([0.0, 1.0, rng.random() * 9]) for _ in range(rng.randint(1, 9))]
        stages = rng.randint(1, len(costs))
        sizes = balance(costs, stages)
        assert sum(sizes) == len(costs) and min(sizes) >= 1 and len(sizes) == stages
        assert max(stage_costs(costs, sizes)) == pytest.approx(_best_by_trying(costs, stages))


def test_balance_equal_costs_takes_the_cheapest_cut():
    assert balance([1, 0, 1], 2, cut_costs=[100, 1]) == [2, 1]
    assert balance([1, 0, 1], 2, cut_costs=[1, 100]) == [1, 2]


def test_balance_stays_within_the_memory_limit():
    memory = [6, 1, 1, 6]

    def memory_of(stage, start, stop):
        return sum(memory[start:stop])

    assert balance([1, 1, 1, 9], 2, memory_of=memory_of, memory_limit=8) == [3, 1]
    assert balance([9, 1, 1, 1], 2, memory_of=memory_of, memory_limit=8) == [1, 3]
    assert balance([9, 1, 1, 1], 2, memory_of=memory_of, memory_limit=7.5) == [2, 2]
    with pytest.raises(ValueError, match=r"memory_limit \(5 bytes\).*largest block alone needs 6"):
        balance([1, 1, 1, 1], 2, memory_of=memory_of, memory_limit=5)


def test_balance_more_stages_than_blocks_is_rejected():
    with pytest.raises(ValueError, match=r"`stages` \(3\).*blocks \(2\)"):
        balance([1, 1], 3)


def test_simulate_equal_stages_gives_the_ideal():
    for name, stages, micro_batches in CASES:
        result = simulate([1.0] * stages, micro_batches=micro_batches, schedule=name)
        assert result.duration == pytest.approx(3 * (micro_batches + stages - 1))
        assert result.speedup == pytest.approx(micro_batches * stages / (micro_batches + stages - 1))
        assert result.bubble == pytest.approx((stages - 1) / (micro_batches + stages - 1))


def test_simulate_unequal_stages_and_transfers_manually():
    result = simulate([1.0, 2.0], [3.0, 1.0], micro_batches=2, schedule="gpipe", transfer=0.5)
    spans = {(s.stage, s.micro_batch, s.kind): (s.start, s.stop) for s in result.spans}
    assert [spans[1, n, "forward"] for n in (0, 1)] == [(1.5, 3.5), (3.5, 5.5)]
    assert spans[1, 0, "backward"] == (5.5, 6.5)
    assert [spans[0, n, "backward"] for n in (0, 1)] == [(7.0, 10.0), (10.0, 13.0)]
    assert result.duration == 13.0
    assert result.bubble == pytest.approx(1 - 14 / 26)


def _random_costs(rng, stages):
    return [[rng.uniform(0.2, 3.0) for _ in range(n)] for n in (stages, stages, stages - 1)]


def test_simulate_gpipe_with_unequal_stages_and_transfers_is_the_closed_form():
    # One micro-batch passes all stages and cuts; each further one costs the time of the slowest stage.
    rng = random.Random(5)
    for stages, micro_batches in SIZES:
        forward, backward, transfer = _random_costs(rng, stages)
        result = simulate(forward, backward, micro_batches, "gpipe", transfer)
        through = sum(forward) + sum(backward) + 2 * sum(transfer)
        slowest = max(forward) + max(backward)
        assert result.duration == pytest.approx(through + (micro_batches - 1) * slowest)
        work = micro_batches * (sum(forward) + sum(backward))
        assert result.bubble == pytest.approx(1 - work / (stages * result.duration))
        assert result.speedup == pytest.approx(work / result.duration)


def test_simulate_1f1b_pays_transfers_in_every_round_and_gpipe_once():
    # K micro-batches are in flight: K complete in the time that one needs for its round trip.
    for stages, transfer in itertools.product([2, 3, 4], [0.0, 0.3, 1.0]):
        round_trip = 3.0 * stages + 2 * (stages - 1) * transfer
        for name, of_a_round in (("1f1b", round_trip), ("gpipe", 3.0 * stages)):
            first, later = (
                simulate([1.0] * stages, None, m, name, transfer).duration for m in (4 * stages, 5 * stages)
            )
            assert later - first == pytest.approx(of_a_round), (name, stages, transfer)


def test_simulate_slowest_stage_sets_the_pace_of_1f1b():
    first, later = (simulate([1.0, 2.5, 1.0], micro_batches=m, schedule="1f1b").duration for m in (8, 9))
    assert later - first == pytest.approx(2.5 + 5.0)


def test_simulate_every_job_waits_for_what_it_needs_and_a_stage_does_one_at_a_time():
    rng = random.Random(7)
    for name, (stages, micro_batches) in itertools.product(SCHEDULES, SIZES):
        forward, backward, transfer = _random_costs(rng, stages)
        result = simulate(forward, backward, micro_batches, name, transfer, rematerialize=rng.random() < 0.5)
        spans = {(s.stage, s.micro_batch, s.kind): s for s in result.spans}
        assert len(spans) == 2 * stages * micro_batches
        for (stage, micro_batch, kind), span in spans.items():
            for need in find_needed(stage, micro_batch, kind, stages):
                sent = 0.0 if need[0] == stage else transfer[min(need[0], stage)]
                assert span.start >= spans[need].stop + sent - 1e-9
        for stage in range(stages):
            mine = [span for span in result.spans if span.stage == stage]
            assert all(a.stop <= b.start + 1e-9 for a, b in itertools.pairwise(mine))
            ahead = micro_batches if name == "gpipe" else min(micro_batches, stages - stage)
            assert _most_kept(mine) <= ahead


def _most_kept(spans):
    """The most micro-batches whose activations a stage keeps: from the start of forward to the end of backward."""
    starts = {s.micro_batch: s.start for s in spans if s.kind == "forward"}
    stops = {s.micro_batch: s.stop for s in spans if s.kind == "backward"}
    return max(sum(starts[m] <= t < stops[m] - 1e-9 for m in starts) for t in starts.values())


def test_simulate_rematerialize_runs_the_forward_pass_again_unless_it_has_just_run():
    kept = simulate([1.0], [2.0], micro_batches=4, schedule="1f1b", rematerialize=True)
    assert kept.duration == 12.0
    again = simulate([1.0], [2.0], micro_batches=4, schedule="gpipe", rematerialize=True)
    assert again.duration == 16.0
    assert find_rematerialized(SCHEDULES["1f1b"](2, 2)) == {(0, 0), (0, 1)}


def test_simulate_wrong_arguments_are_rejected():
    for wrong, words in (
        ({"micro_batches": 0}, r"`micro_batches` must be a whole number of at least 1\. Received: 0"),
        ({"schedule": "zigzag"}, r"`schedule` must be .*zigzag"),
        ({"transfer": [1.0, 1.0]}, r"`transfer` \(2\)"),
    ):
        with pytest.raises(ValueError, match=words):
            simulate([1.0, 1.0], **wrong)


def test_timeline_svg_has_one_box_for_each_job_and_is_well_formed(tmp_path):
    timeline = Timeline(simulate([1.0, 1.5, 1.0], micro_batches=4, schedule="1f1b"), title="a < b", unit="s")
    timeline.save(tmp_path / "step.svg")
    root = ElementTree.fromstring((tmp_path / "step.svg").read_text())
    boxes = [node for node in root.iter() if node.tag.endswith("rect") and len(node)]
    assert len(boxes) == 2 * 3 * 4
    assert timeline._repr_svg_() == timeline.svg()
    assert "4 micro-batches" in str(timeline)
