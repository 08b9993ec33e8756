"""What `doctor` finds on this machine: devices, servers that listen, and the answers of a probe."""
