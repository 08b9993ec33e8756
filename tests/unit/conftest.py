"""What several tests of single functions share."""

import pytest

from unisono.distribute.hardware import program_cache


@pytest.fixture
def before_flags_are_read(monkeypatch):
    """Call it so that TensorFlow has not read its flags yet."""
    return lambda: monkeypatch.setattr(program_cache, "flags_are_read", lambda: False)
