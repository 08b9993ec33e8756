"""Variables on parameter servers, and the workers of a coordinator."""
