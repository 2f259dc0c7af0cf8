"""The dictionary: the format of its parts, and looking keys up in them."""
