"""Import of click logs in other formats: a tree of hours, and the values file with the meaning of their columns."""
