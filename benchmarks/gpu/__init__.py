"""Measures step times on a GPU: `python -m benchmarks.gpu`. Each trainer has its own process."""
