"""From cells to keys and numbers: the same in trainers and serving."""
