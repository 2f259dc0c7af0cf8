"""Click logs, rows of columns and SequenceFiles: from bytes to cells and records, and back."""
