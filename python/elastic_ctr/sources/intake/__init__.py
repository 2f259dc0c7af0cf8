"""The role that appends clicks sent over HTTP to a log with offsets: a stream for users without Kafka."""
