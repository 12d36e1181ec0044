"""The commands: each a frozen dataclass of its settings and a function that runs it."""

from rich.console import Console

PIPE_WIDTH = 160


def open_console() -> Console:
    """Standard output; in a pipe, wide enough that no table is cut."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPE_WIDTH)
