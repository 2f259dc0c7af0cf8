"""Predictions: lookup, dense network, frontends."""
