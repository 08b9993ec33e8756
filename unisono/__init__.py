"""Unisono: Keras 3 training on any tf.distribute strategy, with the numbers of one device."""

from .version import __version__

__all__ = ["__version__"]
