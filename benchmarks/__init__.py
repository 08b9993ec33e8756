"""Benchmarks; each compares Unisono with its peers in the same run. `python -m benchmarks` compares training speed."""
