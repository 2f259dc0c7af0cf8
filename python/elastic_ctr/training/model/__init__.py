"""Networks and quality metrics."""
