"""Scores of hours or files by a version in the store, without a serving fleet."""
