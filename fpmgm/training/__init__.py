"""Training that survives a kill."""
