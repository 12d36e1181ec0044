"""What a run is known by before it is trained: all that its weights follow from, but for rounding."""

import hashlib
import json
from typing import Any

from fpmgm.checkpoint import weights_of
from fpmgm.post_training.consistency import INIT
from fpmgm.post_training.matching import TEACHER, Matching
from fpmgm.training.config import Training
from fpmgm.training.folder import MAY_CHANGE, settings_of
from fpmgm.training.start import RUNS_OWN

ROUNDING = {"mixed_precision", "optim.muon_precision"}
"""Settings that change the last digits of weights only."""
NEWER = {"objective.rest": False, "objective.base.rest": False, "objective.order": "chance"}
"""Settings that are newer than rows of results; they are left out where they have their default, or rows were lost."""
OF_STOPPING = {"validate_every", "validation_sequences", "validation_iters"}
"""What the end of a run follows from, if a rule stops it."""


def identity_of(config: Training, start: str = "") -> str:
    """The settings of a run as a hash, which every machine finds alike; models that it names count by their weights.

    `start` is the identity of the run whose model the run starts from; if it is empty, its `init` is a model that is
    there.
    """
    unknown = ROUNDING | (MAY_CHANGE - OF_STOPPING if config.stop_above else MAY_CHANGE) | {"init"}
    settings = {name: value for name, value in settings_of(config).items() if name not in unknown}
    settings = {name: value for name, value in settings.items() if name not in NEWER or value != NEWER[name]}
    parts = [settings, start or (config.init and weights_of(config.init)), _beside(config)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _beside(config: Training) -> list[str]:
    """The weights of other models that take part in a run."""
    objective: Any = config.objective
    named = [objective.teacher_source] if objective.teacher_source not in (*RUNS_OWN, INIT) else []
    if isinstance(objective, Matching) and objective.fake not in (TEACHER, INIT):
        named.append(objective.fake)
    return [weights_of(name) for name in named]
