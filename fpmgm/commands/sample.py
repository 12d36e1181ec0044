"""The commands around one model: sample, info, push."""

import json
import sys
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console
from rich.text import Text

from fpmgm.checkpoint import DEFAULT, find_folder, load, load_folder, read_config
from fpmgm.devices import OnDevice
from fpmgm.evaluation.threads import use_threads
from fpmgm.generation import Sampling, generate
from fpmgm.hub import asking_hub
from fpmgm.recipes import RECIPES
from fpmgm.replay import Replay


@dataclass(frozen=True, kw_only=True)
class SampleCommand(Sampling, OnDevice):
    """Write text with a trained model."""

    model: Annotated[str, tyro.conf.Positional] = DEFAULT
    """A bundled model, a model folder, or a hub id owner/name."""
    num_samples: int = 1
    """Samples for each prompt or text with blanks."""
    prompt: tuple[str, ...] = ()
    """What the text begins with. A space at its end is left out: the next word brings its own."""
    infill: tuple[str, ...] = ()
    """A text with blanks of underscores, one for each token: 'the ___ of the ___'. A blank takes the space
    before it."""
    watch: bool = False
    """Replay the denoising of the first sequence, step by step."""
    json: bool = False
    """Print one JSON object: texts, block_evals, seconds and the settings."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_device()
        if self.watch and self.json:
            raise ValueError("watch and json are both set; give one of them")


def run_sample(command: SampleCommand) -> None:
    """Print the samples."""
    model = load(command.model, device=command.device, dtype=command.dtype)
    num_texts = max(1, len(command.prompt), len(command.infill)) * max(1, command.num_samples)
    use_threads(model.config, min(num_texts, command.batch_size))
    settings = {field.name: getattr(command, field.name) for field in fields(Sampling)}
    console = Console(highlight=False)
    how = {"num_samples": command.num_samples, "prompts": command.prompt, "infill": command.infill, **settings}
    if command.watch:
        with Replay(model, console, stays=False) as replay:
            out = generate(model, on_step=replay, **how)
    else:
        out = generate(model, **how)
    if command.json:
        found = {"texts": out.texts, "block_evals": out.block_evals, "seconds": out.seconds, "steps": out.steps}
        print(json.dumps({**found, "settings": {"model": command.model, **settings}}))
        return
    for index, text in enumerate(out.texts):
        console.rule(f"sample {index + 1} of {len(out.texts)}", style="dim")
        console.print(Text(text))
    print(f"{out.block_evals} block evaluations in {out.steps} steps, {out.seconds:.2f} s", file=sys.stderr)


@dataclass(frozen=True, kw_only=True)
class InfoCommand:
    """Parameters, blocks and cost of a model or a recipe."""

    name: Annotated[str, tyro.conf.Positional] = DEFAULT
    """A recipe, a bundled model, a model folder, or a hub id owner/name."""
    json: bool = False
    """Print one JSON object."""


def run_info(command: InfoCommand) -> None:
    """Print what a model or a recipe is."""
    found = describe(command.name)
    if command.json:
        print(json.dumps(found))
        return
    for key, value in found.items():
        is_count = isinstance(value, int) and not isinstance(value, bool)
        print(f"{key:28} {value:,}" if is_count else f"{key:28} {value}")


def describe(name: str) -> dict[str, Any]:
    """Parameters, blocks and the cost of a denoising step of a recipe or a model."""
    near = get_close_matches(name, RECIPES, n=1)
    if near and name not in RECIPES and not Path(name).exists():
        raise ValueError(f"no recipe or model {name!r}; did you mean {near[0]!r}? Recipes: {', '.join(RECIPES)}")
    config = RECIPES[name].network if name in RECIPES else read_config(find_folder(name))
    with torch.device("meta"):
        denoiser = config.build()
    num_iters = 4 if config.cost.fp else 0
    settings: Any = config
    return {
        "name": name,
        "parameters": sum(parameter.numel() for parameter in denoiser.parameters()),
        "model_type": config.model_type,
        "blocks": str(config.cost),
        "iterations_per_step": num_iters,
        "block_evals_per_step": denoiser.cost.step(num_iters),
        "multiply_adds_per_step": config.multiply_adds(
            num_iters=num_iters,
            num_positions=config.vocabulary.length // 4,  # logits at a quarter of the positions
        ),
        **asdict(settings),
    }


@dataclass(frozen=True, kw_only=True)
class PushCommand:
    """Put a model folder on the hub."""

    model: Annotated[str, tyro.conf.Positional]
    """A model folder."""
    name: Annotated[str, tyro.conf.Positional]
    """The repository, owner/name; it is made if it is not there."""
    private: bool = False


def run_push(command: PushCommand) -> None:
    """Upload the folder as it stands, after reading it once to see that it is whole."""
    folder = find_folder(command.model)
    load_folder(folder)
    if command.name.count("/") != 1:
        raise ValueError(f"name is {command.name!r}; a hub repository is written owner/name")
    from huggingface_hub import HfApi

    with asking_hub(f"a place to {command.name}", "check the network, the name and your token"):
        api = HfApi()
        api.create_repo(command.name, private=command.private, exist_ok=True)
        done = api.upload_folder(repo_id=command.name, folder_path=folder, commit_message="Upload an fpmgm model")
    print(done.commit_url)
