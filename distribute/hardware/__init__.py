"""Devices: which ones, their memory, the placement of data on them, and estimates for other numbers of them."""
