"""The processes of one cluster: who they are, whether all are there, and what they agree on."""
