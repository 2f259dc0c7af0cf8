"""Predictions: lookup, dense network, doors."""
