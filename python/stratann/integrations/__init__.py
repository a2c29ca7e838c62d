"""StratANN inside other people's programs."""
