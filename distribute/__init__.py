"""Strategies, replicas, clusters: how numbers travel. Nothing here knows of models, losses or optimizers."""

from .means import global_batch_size as global_batch_size
from .means import global_mean as global_mean
