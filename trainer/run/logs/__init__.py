"""The logs of each step of a compiled call: carried through the loop, recorded, and passed to callbacks."""
