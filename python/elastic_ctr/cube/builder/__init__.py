"""`cube-builder`: from published records to dictionary parts."""
