"""Who wants to stop: an event for each visitor and each tab, that a run looks at between two steps."""

from threading import Event, Lock


class Stops:
    """Events by visitor and tab."""

    def __init__(self) -> None:
        self._events: dict[tuple[str, str], Event] = {}
        self._lock = Lock()

    def begin(self, visitor: str, tab: str) -> None:
        """A run is asked for; from now on it can be stopped, also while it waits for its turn."""
        with self._lock:
            self._events[visitor, tab] = Event()

    def of(self, visitor: str, tab: str) -> Event:
        """The event of the run that begins now."""
        with self._lock:
            return self._events.setdefault((visitor, tab), Event())

    def end(self, visitor: str, tab: str) -> None:
        """The run is over."""
        with self._lock:
            self._events.pop((visitor, tab), None)

    def stop(self, visitor: str, tab: str) -> None:
        """Stop the run of a tab, if there is one."""
        with self._lock:
            if event := self._events.get((visitor, tab)):
                event.set()

    def leave(self, visitor: str) -> None:
        """Stop all runs of a visitor who has closed the page."""
        with self._lock:
            for key in [key for key in self._events if key[0] == visitor]:
                self._events.pop(key).set()
