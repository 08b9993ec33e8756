"""The stages between gradients and new weights, and ready pieces for them."""
