"""The stages between gradients and new weights, and the ready pieces for them."""
