"""Adapters of StratANN for other programs."""
