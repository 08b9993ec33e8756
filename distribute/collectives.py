"""Where a collective cannot stand."""

from __future__ import annotations

from .step_context import StepContext, current_step


def refuse_collective(what: str) -> None:
    """Refuses a collective in a part of the step that XLA compiles.

    Raises:
        ValueError: if the current step is being compiled.
    """
    step: StepContext | None = current_step()
    if step is not None and step.in_xla and step.num_replicas > 1:
        raise ValueError(
            f"jit_compile=True cannot be used with {step.num_replicas} replicas here: {what} needs numbers of the other "
            'replicas in the middle of the compiled part. Compile the model with jit_compile="auto" or False.'
        )
