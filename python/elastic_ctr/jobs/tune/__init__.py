"""A search for the model's settings on existing hours: one trial is one training beside one parameter server."""
