"""Tables of correct and wrong uses: the call, and what its error must say."""
