"""Scripts of the project: they are not installed."""
