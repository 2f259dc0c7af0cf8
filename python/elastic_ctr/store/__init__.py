"""Where published files live: one small interface."""
