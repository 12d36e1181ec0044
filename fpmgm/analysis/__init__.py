"""Looks inside a model: what its layers do, and what follows for a conversion."""
