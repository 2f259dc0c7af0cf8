"""Networks and metrics that training and serving share."""
