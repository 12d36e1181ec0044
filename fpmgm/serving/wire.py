"""What goes over the wire: requests and answers in the form of OpenAI's completions, with a field of fpmgm's own."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from fpmgm.budget import AllocationName
from fpmgm.draws import NucleusName
from fpmgm.masking import ScheduleName
from fpmgm.reuse import ReuseName
from fpmgm.solvers import SolverName
from fpmgm.transitions import TransitionName

LARGEST_SEED = 2**63 - 1
MOST_STOPS = 4
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (),
    "user": (),
}
"""Fields of OpenAI's that fpmgm does not support, and the values with which they ask for nothing."""
Share = Annotated[list[float], Field(min_length=2, max_length=2)]


class Strict(BaseModel):
    """An object of a request: unknown fields, wrong types and numbers that are not finite are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Options(Strict):
    """How to spend a budget: the settings of `fpmgm sample` that OpenAI has no field for. None leaves one open."""

    budget: int | None = None
    steps: int | None = None
    allocation: Literal["auto", AllocationName] | None = None
    reuse: Literal["auto", ReuseName] | None = None
    reuse_masked: Share | None = None
    reuse_changed: Share | None = None
    solver: SolverName | None = None
    tolerance: float | None = None
    transition: Literal["auto", TransitionName] | None = None
    schedule: ScheduleName | None = None
    confidence_noise: float | None = None
    top_k: int | None = None
    nucleus: NucleusName | None = None


class StreamOptions(Strict):
    """What a stream holds besides the text."""

    include_usage: bool | None = None


class CompletionRequest(Strict):
    """A request for completions."""

    model: str
    prompt: str | list[str] = ""
    suffix: str | None = None
    max_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: Annotated[int, Field(ge=0, le=LARGEST_SEED)] | None = None
    stop: str | list[str] | None = None
    echo: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    fpmgm: Options | None = None
    best_of: Any = None
    frequency_penalty: Any = None
    presence_penalty: Any = None
    logit_bias: Any = None
    logprobs: Any = None
    user: Any = None

    @field_validator("prompt", mode="before")
    @classmethod
    def prompt_is_text(cls, given: Any) -> Any:
        """A prompt is a text or a list of texts; OpenAI's null stands for an empty text."""
        if given is None:
            return ""
        if isinstance(given, list) and (not given or not all(isinstance(each, str) for each in given)):
            raise ValueError("give a text or a list of texts; lists of token numbers are not supported")
        if not isinstance(given, str | list):
            raise ValueError("give a text or a list of texts")
        return given

    @field_validator("stop", mode="before")
    @classmethod
    def stops_are_texts(cls, given: Any) -> Any:
        """At most four texts, none of them empty."""
        stops = [given] if isinstance(given, str) else given
        if stops is None:
            return None
        if not isinstance(stops, list) or not all(isinstance(each, str) and each for each in stops):
            raise ValueError("give a text or a list of texts, none of them empty")
        if len(stops) > MOST_STOPS:
            raise ValueError(f"{len(stops)} texts are given; at most {MOST_STOPS} are allowed")
        return stops

    @field_validator(*NEUTRAL, mode="before")
    @classmethod
    def asks_for_nothing(cls, given: Any, info: Any) -> Any:
        """Fields that fpmgm does not support are refused, unless they ask for nothing."""
        if given is not None and given not in NEUTRAL[info.field_name]:
            raise ValueError("fpmgm does not support this field; leave it out")
        return given

    @property
    def prompts(self) -> list[str]:
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


KNOWN = {
    "": [name for name in CompletionRequest.model_fields if name not in NEUTRAL],
    "fpmgm": list(Options.model_fields),
    "stream_options": list(StreamOptions.model_fields),
}
"""The fields of each object of a request."""


class Choice(BaseModel):
    """One text. `finish_reason` is stop if it came to an end or to a text of `stop`, else length."""

    index: int
    text: str
    logprobs: None = None
    finish_reason: Literal["stop", "length"] | None


class Usage(BaseModel):
    """How many tokens were given and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Spent(BaseModel):
    """What an answer cost, and the settings that made it, the seed among them."""

    block_evals: int
    steps: int
    seconds: float
    settings: dict[str, Any]


class Provisional(BaseModel):
    """A text that is still being written, after one denoising step. Masks are shown as dots."""

    step: int
    steps: int
    provisional: str


class Completion(BaseModel):
    """An answer, whole or a part of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage | None = None
    fpmgm: Spent | Provisional | None = None


class ModelFacts(BaseModel):
    """What a model is, beyond its name."""

    length: int
    blocks: str
    parameters: int


class ModelCard(BaseModel):
    """A model that can be asked."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "fpmgm"
    fpmgm: ModelFacts


class ModelList(BaseModel):
    """All models that can be asked."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class Health(BaseModel):
    """Whether the server answers, and how much work it has."""

    status: Literal["ok", "closing"]
    models: list[str]
    waiting: int
    running: int
