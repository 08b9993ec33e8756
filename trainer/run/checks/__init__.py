"""Errors and warnings of a fit that name their cause: an argument, memory, overflow, determinism."""
