"""The commands around one model: sample, info, push."""

import json
import math
import sys
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console
from rich.text import Text

from fpmgm.checkpoint import DEFAULT, Model, find_folder, load, load_folder, read_config
from fpmgm.codecs import ImageCodec
from fpmgm.commands.sample_images import check_files, run_sample_images
from fpmgm.data.text import PAIRS, TextConfig
from fpmgm.devices import OnDevice
from fpmgm.evaluation.threads import use_threads
from fpmgm.generation import Sampling, generate
from fpmgm.hub import asking_hub
from fpmgm.progress import StepProgress
from fpmgm.recipes import RECIPES
from fpmgm.replay import Replay


@dataclass(frozen=True, kw_only=True)
class SampleCommand(Sampling, OnDevice):
    """Write text or draw images with a trained model."""

    model: Annotated[str, tyro.conf.Positional] = DEFAULT
    """A bundled model, a model folder, or a hub id owner/name."""
    num_samples: int = 1
    """Samples for each prompt, for each text with blanks, or for each class."""
    prompt: tuple[str, ...] = ()
    """What the text begins with. A space at its end is left out, because the next word brings its own."""
    infill: tuple[str, ...] = ()
    """A text with blanks, such as 'the ___ of the ___'. Each underscore stands for one token. A blank takes the space
    before it."""
    classes: Annotated[tuple[tuple[str, ...], ...], tyro.conf.arg(name="class"), tyro.conf.UseAppendAction] = ()
    """For images: the class to draw, by name or number. Without it, samples are of all classes in turn."""
    out: str = ""
    """For images: a .png file for all samples side by side, or a folder, which ends with /, for a file for each.
    Without it, they are drawn in the terminal, and saved where the last line says."""
    animate: str = ""
    """For images: a .gif or .webp file that shows how they are filled in, step by step."""
    inpaint: str = ""
    """For images: an image of which a part is drawn anew."""
    mask: str = ""
    """The part of `inpaint` to draw anew: an image of the same size, white there and black elsewhere."""
    resize: bool = False
    """Bring `inpaint` and `mask` to the size that the model draws. Without it another size is refused."""
    whole: bool = False
    """Of texts: print whole sequences. Without it, a model that has learned where texts end prints up to the end."""
    watch: bool = False
    """Replay the denoising step by step: of the first text, or of the first images."""
    json: bool = False
    """Print one JSON object: texts, or codes and classes; block_evals, seconds and the settings."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_device()
        if self.watch and self.json:
            raise ValueError("watch and json are both set; give one of them")
        check_files(self.out, self.animate, self.inpaint, self.mask)
        if self.resize and not self.inpaint:
            raise ValueError("resize is set, and without --inpaint there is nothing to resize")

    @property
    def class_list(self) -> tuple[str, ...]:
        """All classes that are asked for, however they were written."""
        return tuple(each for given in self.classes for each in given)

    @property
    def num_asked(self) -> int:
        """Samples in all."""
        return max(1, len(self.prompt), len(self.infill), len(self.class_list)) * max(1, self.num_samples)

    @property
    def num_batches(self) -> int:
        """Batches that they are sampled in."""
        return math.ceil(self.num_asked / max(1, self.batch_size))


OPTIONS = {
    "text": {"--prompt": "prompt", "--infill": "infill", "--whole": "whole"},
    "image": {"--class": "classes", "--out": "out", "--animate": "animate", "--inpaint": "inpaint"},
}
"""What can be asked of one kind of model only."""
INSTEAD = {"text": "writes text; begin it with --prompt", "image": "draws images; ask for a class with --class"}


def run_sample(command: SampleCommand) -> None:
    """Print the samples, or draw them."""
    model = load(command.model, device=command.device, dtype=command.dtype)
    codec = model.speech
    _check_options(command, codec.kind)
    settings = {field.name: getattr(command, field.name) for field in fields(Sampling)}
    use_threads(model.config, min(command.num_asked, command.batch_size) * (2 if command.cfg_weight else 1))
    if isinstance(codec, ImageCodec):
        run_sample_images(command, model, codec, settings)
    else:
        _run_sample_texts(command, model, settings)


def _check_options(command: SampleCommand, kind: str) -> None:
    """A ValueError if something is asked for that only the other kind of model knows."""
    for other, options in OPTIONS.items():
        for option, name in options.items():
            if kind in INSTEAD and other != kind and getattr(command, name):
                raise ValueError(f"{option} is for {other} models, and {command.model} {INSTEAD[kind]}")


def _run_sample_texts(command: SampleCommand, model: Model, settings: dict[str, Any]) -> None:
    console = Console(highlight=False)
    if isinstance(model.data, TextConfig) and model.data.packing == PAIRS and not (command.prompt or command.infill):
        print("this model has learned to answer prompts, and none is given; give one with --prompt", file=sys.stderr)
    how = {"num_samples": command.num_samples, **settings}
    how |= {name: given for name, given in (("prompts", command.prompt), ("infill", command.infill)) if given}
    if command.watch:
        with Replay(model, console, stays=False) as replay:
            out = generate(model, on_step=replay, **how)
    else:
        with StepProgress("writing", command.num_batches) as shown:
            out = generate(model, on_step=shown, **how)
    texts = out.whole if command.whole else out.texts
    if command.json:
        found = {"texts": texts, "block_evals": out.block_evals, "seconds": out.seconds, "steps": out.steps}
        found["position_blocks"] = out.position_blocks
        print(json.dumps({**found, "settings": {"model": command.model, **asdict(out.sampling)}}))
        return
    for index, text in enumerate(texts):
        console.rule(f"sample {index + 1} of {len(texts)}", style="dim")
        console.print(Text(text))
    print(f"{out.block_evals} block evaluations in {out.steps} steps, {out.seconds:.2f} s", file=sys.stderr)


@dataclass(frozen=True, kw_only=True)
class InfoCommand:
    """Show parameters, blocks and cost of a model or a recipe."""

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
    """The repository, owner/name. It is made if it does not exist."""
    private: bool = False
    """Only you can see the repository."""


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
