r"""Losses that layers add with `add_loss`, exact over several replicas.

In `fit` on several replicas the layers are Keras' own, whose added losses are means over the samples: in units of a local
mean, as any loss in a step is (see `global_loss`). In a custom loop a layer's added loss is taken for such a mean.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ...compat.layers import losses_of_layers


def added_by(layers: Sequence[Any]) -> list[tf.Tensor]:
    """What the layers, and those inside of them, have added on this replica."""
    found = itertools.chain.from_iterable(map(losses_of_layers, layers))
    return [loss for _, _, loss in found]
