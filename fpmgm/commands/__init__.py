"""The commands: each a frozen dataclass of its settings and a function that runs it."""
