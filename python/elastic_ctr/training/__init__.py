"""The roles that train and publish a model (master, trainer, pserver), and the parts that they share."""
