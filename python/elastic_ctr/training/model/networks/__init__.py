"""The networks, one file each: from pooled slots and numbers to one logit for each row. `catalog` has them by name."""
