"""The export of a pass: from table text to SequenceFiles, and the values of sample keys."""
