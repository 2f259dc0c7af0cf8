"""Export of a pass: table text to SequenceFiles, and the values of sample keys."""
