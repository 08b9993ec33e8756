"""`python -m unisono launch`: the processes of one cluster on this machine, started, watched and ended."""
