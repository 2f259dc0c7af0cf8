"""Click logs in other formats to a tree of hours, with the values file that says what their columns mean."""
