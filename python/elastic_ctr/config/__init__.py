"""Typed settings by domain, and the one lane from values file to role files."""
