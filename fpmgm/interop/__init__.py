"""Other people's models: read so that nothing in them runs, and converted."""
