"""Policies and the loss scale."""
