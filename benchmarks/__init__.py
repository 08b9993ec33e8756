"""Scripts that measure, each against peers in the same run. `python -m benchmarks` compares the speed of training."""
