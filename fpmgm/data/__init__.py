"""What models learn from."""
