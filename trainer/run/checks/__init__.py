"""Errors of a fit that name their cause: an argument, or a loss that overflows."""
