"""The identity of a run: what a resumed run must have in common with the one that wrote the backup."""
