"""Training whose variables are stored on parameter servers: steps are handed out to workers."""
