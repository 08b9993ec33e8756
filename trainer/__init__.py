"""Model.fit: what a step computes, how it is compiled, how epochs run."""
