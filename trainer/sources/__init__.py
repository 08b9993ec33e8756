"""Where batches come from: every kind of input as one `Source` of global batches."""
