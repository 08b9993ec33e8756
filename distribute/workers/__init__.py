"""The processes of one cluster: their identities, their rendezvous, and their agreements."""
