"""Click-through-rate training and serving: Paddle's parameter servers in, versioned predictions out."""

__version__ = "0.1.0"
