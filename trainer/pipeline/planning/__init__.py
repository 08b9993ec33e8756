"""What a pipeline is made of before training: the graph of the model, the costs of its parts, its stages."""
