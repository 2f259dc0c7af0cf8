"""Steps of the master that need the store or the streams: they run without the lock of decisions."""
