"""Networks and metrics: what training and serving must agree on."""
