"""The networks, a file each: pooled slots and numbers in, one logit a row out. `catalog` has them by name."""
