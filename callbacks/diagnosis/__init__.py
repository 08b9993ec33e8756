"""Warnings while training runs, with what was measured."""
