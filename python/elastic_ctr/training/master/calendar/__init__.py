"""The plan of passes: the next hours or offsets, and the quality below which nothing is published."""
