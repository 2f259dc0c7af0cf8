"""Requests become batches: one lookup and one call of the dense network each."""
