"""In pieces of which size collectives are sent."""

import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from unisono.compat.tensorflow_private import clusters


@pytest.mark.parametrize("own, expected", [(None, 64), (0, 64), (8, 8), (-1, -1)])
def test_collectives_are_sent_in_pieces_of_this_size_or_of_the_programs_own(monkeypatch, own, expected):
    config = None if own is None else tf.compat.v1.ConfigProto(allow_soft_placement=True)
    if config is not None:
        config.experimental.recv_buf_max_chunk = own
    monkeypatch.setattr(context.context(), "_config", config)
    clusters.send_in_pieces(64)
    assert context.context().config.experimental.recv_buf_max_chunk == expected
    assert own is None or context.context()._config.allow_soft_placement
