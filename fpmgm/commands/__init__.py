"""The commands: each a frozen dataclass of its settings and a function that runs it."""

from rich.console import Console


def open_console() -> Console:
    """Standard output; in a pipe 80 columns wide, or as wide as COLUMNS says."""
    return Console(highlight=False)
