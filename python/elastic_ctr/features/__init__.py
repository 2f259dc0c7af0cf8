"""From cells to keys and numbers: transforms, statistics, quantised values and synthetic rows."""
