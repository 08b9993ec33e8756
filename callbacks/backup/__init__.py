"""Backups: the whole state of a `fit`, written safely and restored bit for bit."""
