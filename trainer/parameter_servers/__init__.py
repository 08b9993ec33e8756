"""Training with variables on parameter servers: workers run the steps."""
