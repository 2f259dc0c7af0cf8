"""Tables of click logs: their commits, and the files of rows that each one added."""
