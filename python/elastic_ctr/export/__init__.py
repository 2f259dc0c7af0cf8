"""What a pass leaves: table text to SequenceFile, the dense network, samples."""
