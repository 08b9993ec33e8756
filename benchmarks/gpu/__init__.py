"""Step times on a GPU: `python -m benchmarks.gpu`. Each way of training is measured in a process of its own."""
