"""What users would otherwise run, made as well as we can."""
