"""Typed settings by domain, and their way from the values file to role files."""
