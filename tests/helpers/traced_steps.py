"""What the partition pass made of the steps of a test."""

from unisono.trainer.partition.steps import step_partition
from unisono.trainer.partition.steps.traced_step import TracedStep


def record_traced_steps(monkeypatch) -> list[TracedStep]:
    """A list that gets every step that is partitioned until the end of the test."""
    steps = []

    def trace(*arguments):
        steps.append(TracedStep(*arguments))
        return steps[-1]

    monkeypatch.setattr(step_partition, "TracedStep", trace)
    return steps
