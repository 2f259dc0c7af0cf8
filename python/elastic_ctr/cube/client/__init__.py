"""Clients that look keys up in cube."""
