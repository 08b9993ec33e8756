"""TensorFlow has no types of its own, and what a type checker infers from its sources is often wrong: all is Any."""

from typing import Any

def __getattr__(name: str) -> Any: ...
