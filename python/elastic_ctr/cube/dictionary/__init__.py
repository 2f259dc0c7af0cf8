"""The dictionary: the format of its parts, and the lookup of keys in them."""
