"""The hub: asking it for something, where no answer is an error of one line."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def asking_hub(what: str, help: str = "check the name and the network") -> Iterator[None]:
    """Whatever keeps the hub from answering becomes a ConnectionError that says what was asked for, and why not."""
    try:
        yield
    except (ConnectionError, MemoryError):
        raise
    except Exception as error:  # the hub's own errors, those of its client, and those of the network
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise ConnectionError(f"the hub does not give {what}: {reason}; {help}") from error
