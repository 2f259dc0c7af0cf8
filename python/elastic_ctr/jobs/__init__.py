"""Work over hours that exist already: scores by a version in the store, and the search for better settings."""
