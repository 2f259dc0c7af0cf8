"""The role that takes clicks over HTTP into a log with offsets: a stream for users without Kafka."""
