"""Strategies, replicas, clusters: how numbers travel. Nothing here knows of models, losses or optimizers."""
