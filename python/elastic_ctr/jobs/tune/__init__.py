"""A search for the model's settings on hours that are there already: one trial is one training beside one parameter server."""
