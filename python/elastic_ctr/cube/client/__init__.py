"""Readers of cube."""
