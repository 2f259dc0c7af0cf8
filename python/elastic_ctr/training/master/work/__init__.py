"""Steps of the master that call the store or the streams; they run without the decision lock."""
