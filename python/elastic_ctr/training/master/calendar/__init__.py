"""The schedule of passes: the next hours or offsets, and the quality below which no version is published."""
