"""Scorers: pairs in, scores out. They know nothing of the harness."""
