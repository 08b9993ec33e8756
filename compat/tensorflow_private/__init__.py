"""Private names of TensorFlow outside graphs: strategies, clusters, devices, data pipelines, profiles."""
