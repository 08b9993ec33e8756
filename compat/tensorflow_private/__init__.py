"""Private names of TensorFlow outside of graphs: strategies, clusters, devices, data pipelines, profiles."""
