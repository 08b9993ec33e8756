"""A warning for layers that combine the samples of a batch: a pipeline computes them for each micro-batch alone."""

import warnings
from typing import Any

import tensorflow as tf

from ...compat.keras_private.layers import layers_of
from ...compat.keras_private.training import unpack_x_y_sample_weight
from ...compat.tensorflow_graphs.one_device import line_of_user
from ...state.trained_model import TrainedModel
from ..partition.labels import SAMPLES
from ..partition.program import Convert, NotPartitioned
from ..partition.rules import RULES
from ..partition.steps.step import Step
from ..partition.steps.traced_step import TracedStep


def warn_of_mixed_samples(model: TrainedModel, spec: Any) -> None:
    """Warn of the first operation of the model that needs other samples of its batch, as its rule tells.

    The forward pass is traced and labelled as for several replicas, and never run. Operations without a rule are left out:
    whether they combine samples is not known. Context: host, for a built model.
    """
    x, _, _ = unpack_x_y_sample_weight(spec)
    step = Step(
        lambda batch: model(batch, training=True),
        tf.distribute.get_strategy(),
        "The model",
        layers_of(model),
        model.variables,
        SAMPLES,
    )
    try:
        program = TracedStep(step, x).program
    except NotPartitioned:
        return
    exchanges = (n for n in program.nodes if isinstance(n, Convert) and program.communicates(n))
    causes = (node.cause for node in exchanges if node.cause is not None and node.cause.type in RULES)
    cause = next(causes, None)
    if cause is None:
        return
    line, code = line_of_user(cause)
    place = f" ({line}: `{code}`)" if line else ""
    warnings.warn(
        f"Model {model.name!r} combines the samples of a batch in {cause.name}{place}, and a pipeline computes it for each "
        "micro-batch alone: compute it in `compute_loss`, which gets the whole batch, or use `micro_batches=1` and "
        "`replicas=1`.",
        stacklevel=2,
    )
