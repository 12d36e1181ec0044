"""Limits: the most that one request may ask for, and that the server takes on at once."""

from dataclasses import dataclass

from fpmgm.schema import MAX_BUDGET, MAX_LENGTH, require


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The most that one request may ask for."""

    prompt_tokens: int | None = None
    """Tokens of a prompt and its suffix together; None: as many as leave the model room to write."""
    max_tokens: int | None = None
    """Tokens to write; None: as many as the model's length leaves."""
    texts: int = 16
    """Texts of one request: the number of its prompts times n."""
    budget: int = 1000
    """Block evaluations for each text."""
    body: int = 1 << 20
    """Bytes of a request."""

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "max_tokens"):
            if getattr(self, name) is not None:
                require(f"limits.{name}", getattr(self, name), 1, MAX_LENGTH)
        require("limits.texts", self.texts, 1, 10_000)
        require("limits.budget", self.budget, 1, MAX_BUDGET)
        require("limits.body", self.body, 100, 1 << 30)


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How much the server does at once, and how long anybody waits."""

    batch_size: int = 8
    """Texts that share a sampling run at most."""
    queue: int = 64
    """Requests that may wait. One more is answered with status 429."""
    gather: float = 0.01
    """Seconds that an idle server waits for further requests to share the first one's run."""
    timeout: float = 120.0
    """Seconds after which a request that is not answered gets status 504."""
    grace: float = 30.0
    """Seconds that running requests have to finish when the server is told to end. Waiting ones get status 503."""

    def __post_init__(self) -> None:
        require("pace.batch_size", self.batch_size, 1, 10_000)
        require("pace.queue", self.queue, 1, 100_000)
        require("pace.gather", self.gather, 0, 10)
        require("pace.timeout", self.timeout, 0, 86_400)
        require("pace.grace", self.grace, 0, 86_400)
