"""What is found out about a model by trying, without a trace: a learning rate, a batch size."""
