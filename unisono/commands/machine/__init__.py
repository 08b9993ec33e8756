"""What `doctor` finds on this machine: its devices, its cluster, and the answers of a probe."""
