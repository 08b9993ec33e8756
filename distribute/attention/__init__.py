"""Attention as one operation of a step, which replicas divide along samples and heads."""
