"""What other code asks of the way in which the steps of a model run: `model._runner` has the answers."""

from typing import Any

from ...distribute.mesh import mesh_of


class RunnerFacts:
    """The facts of the plain `Runner`; those of other runners differ."""

    in_process = True  # this process has the batches of the steps, and waits for each call
    partitions = True  # replicas share each batch, so a step is partitioned over several
    moves_variables = False  # to devices without a strategy, before the first step
    no_xla: str | None = None  # why XLA compiles no step
    place: str | None = None  # the devices of the steps, in words; None: those of the strategy
    rematerialization: str | None = "layers in a `keras.RematScope`"  # which computes activations again
    home = "outside any scope"  # where a model without a strategy was built
    all_of = ""  # in the note of an out-of-memory error, where it is not that of each device
    # What normalizes with a part of the batch in a BatchNormalization layer, and what changes that.
    normalizes: tuple[str, ...] = (
        "each replica's samples apart",
        "unisono.synchronize_batch_norm(model) normalizes them together",
    )

    def parts(self, model: Any) -> int:
        """Return into how many parts a batch is divided, each computed apart."""
        return mesh_of(model.distribute_strategy).shape[0]
