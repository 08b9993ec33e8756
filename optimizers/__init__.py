"""Gradients -> aggregated -> unscaled -> transformed -> applied."""
