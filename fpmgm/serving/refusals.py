"""Refusals: why a request gets no answer, with the status and the body that clients of OpenAI's API expect."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

KINDS = {400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_error"}
"""What OpenAI's clients call an error of a status. 404, 405 and 413 are as 400; 500 and above are server_error."""

LONGEST_NAME = 80
"""Letters of a field's name that a message repeats."""


class RefusedError(Exception):
    """A request that gets no answer: the HTTP status, and a message that says what would work."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """What is sent: OpenAI's form of an error."""
        kind = "server_error" if self.status >= 500 else KINDS.get(self.status, KINDS[400])
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def unreadable(errors: Sequence[Mapping[str, Any]], known: Mapping[str, Sequence[str]]) -> RefusedError:
    """What to say of a request that does not fit its model, by the first of pydantic's complaints.

    `known` are the fields of each object: those of the request itself under "", those inside under their names.
    """
    error = errors[0]
    place = [str(part)[:LONGEST_NAME] for part in error["loc"] if part != "body"]
    kind, name = error["type"], ".".join(place)
    if kind == "json_invalid":
        reason = error.get("ctx", {}).get("error", "it cannot be read")
        return RefusedError(400, f"the body is not JSON: {reason}, at character {error['loc'][-1]}")
    if kind == "string_unicode":
        where = f"{name}: the text" if name else "the name of a field"
        return RefusedError(
            400, f"{where} has half characters (surrogates), which no text can hold", param=name or None
        )
    if not place:
        return RefusedError(400, "the body must be a JSON object, sent with the header Content-Type: application/json")
    if kind == "extra_forbidden":
        return RefusedError(400, _unknown(place, known), param=name)
    if kind == "missing":
        return RefusedError(400, f"{name} is missing", param=name)
    if kind == "value_error":
        return RefusedError(400, f"{name}: {error['ctx']['error']}", param=name)
    message = str(error["msg"])
    return RefusedError(400, f"{name}: {message[:1].lower()}{message[1:]}", param=name)


def _unknown(place: Sequence[str], known: Mapping[str, Sequence[str]]) -> str:
    fields = known.get(".".join(place[:-1]), ())
    near = get_close_matches(place[-1], fields, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"{'.'.join(place)} is not a field that fpmgm knows; {hint}Fields: {', '.join(fields)}"
