"""The commands around a trained model: sample, info, evaluate, push."""

import json
import sys
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fpmgm.backbones.dit import MDLMConfig, mdlm
from fpmgm.checkpoint import DEFAULT, Model, find_folder, load, load_folder, read_config
from fpmgm.data.text import PackedText, TextConfig, load_text
from fpmgm.evaluation.cost import multiply_adds
from fpmgm.evaluation.diversity import unigram_entropy
from fpmgm.evaluation.judges import generative_perplexity, load_judge
from fpmgm.evaluation.likelihood import perplexity
from fpmgm.evaluation.ngram import floors
from fpmgm.generation import Sampling, generate
from fpmgm.recipes import RECIPES
from fpmgm.replay import Replay


@dataclass(frozen=True, kw_only=True)
class SampleCommand(Sampling):
    """Write text with a trained model."""

    model: Annotated[str, tyro.conf.Positional] = DEFAULT
    """A bundled model, a model folder, or a hub id owner/name."""
    num_samples: int = 1
    """Samples for each prompt or text with blanks."""
    prompt: tuple[str, ...] = ()
    """What the text begins with."""
    infill: tuple[str, ...] = ()
    """A text with blanks of underscores, one for each token: 'the ____ of the ____'."""
    watch: bool = False
    """Replay the denoising of the first sequence, step by step."""
    json: bool = False
    """Print one JSON object: texts, block_evals, seconds and the settings."""

    def __post_init__(self) -> None:
        if self.watch and self.json:
            raise ValueError("watch and json are both set; give one of them")


def run_sample(command: SampleCommand) -> None:
    """Print the samples."""
    model = load(command.model)
    settings = {field.name: getattr(command, field.name) for field in fields(Sampling)}
    console = Console(highlight=False)
    how = {"num_samples": command.num_samples, "prompts": command.prompt, "infill": command.infill, **settings}
    if command.watch:
        with Replay(model, console) as replay:
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
        denoiser = mdlm(config)
    num_iters = 4 if config.num_fp else 0
    return {
        "name": name,
        "parameters": sum(parameter.numel() for parameter in denoiser.parameters()),
        "blocks": f"{config.num_pre}/{config.num_fp}/{config.num_post}" if config.num_fp else str(config.num_pre),
        "iterations_per_step": num_iters,
        "block_evals_per_step": denoiser.cost.step(num_iters),
        "multiply_adds_per_step": _step_cost(config, num_iters),
        **asdict(config),
    }


def _step_cost(config: MDLMConfig, num_iters: int) -> int:
    """Of a whole sequence with logits at a quarter of its positions."""
    return multiply_adds(config, num_iters=num_iters, num_positions=config.length // 4)


@dataclass(frozen=True, kw_only=True)
class EvaluateCommand:
    """Validation perplexity, generative perplexity and diversity of a model."""

    model: Annotated[str, tyro.conf.Positional] = DEFAULT
    """A bundled model, a model folder, or a hub id owner/name."""
    data: str = "poetry"
    """The text that validation perplexity is measured on, held out as in training."""
    budgets: tuple[int, ...] = (24, 96)
    """Budgets to sample at, in block evaluations."""
    num_samples: int = 64
    judge: str = ""
    """Who judges samples: smollm2, a folder of a causal model, or a causal model of the hub; empty: nobody."""
    validation_sequences: int = 512
    ngram: bool = False
    """Also the perplexity of 5-gram models of the training text on the same held-out tokens: a floor."""
    seed: int = 0
    json: bool = False
    """Print one JSON object."""


def run_evaluate(command: EvaluateCommand) -> None:
    """Print what was measured."""
    found = evaluate(command)
    if command.json:
        print(json.dumps(found))
        return
    console = Console(highlight=False)
    bound = found["validation"]
    console.print(f"validation perplexity {bound['value']:.2f} ± {bound['error']:.2f} on {command.data}")
    for name, value in found["ngram"].items():
        console.print(f"a 5-gram model on the same tokens, {name.replace('_', ' ')}: {value:.2f}")
    table = Table(title=f"{command.num_samples} samples a budget, judge: {found['judge'] or 'none'}")
    for column in ("budget", "block evaluations", "generative perplexity", "entropy", "seconds"):
        table.add_column(column, justify="right")
    for row in found["samples"]:
        perplexity = row.get("generative_perplexity")
        table.add_row(
            str(row["budget"]),
            str(row["block_evals"]),
            f"{perplexity['per_token']:.1f}" if perplexity else "",
            f"{row['entropy']:.3f}",
            f"{row['seconds']:.2f}",
        )
    console.print(table)


def evaluate(command: EvaluateCommand) -> dict[str, Any]:
    """All that `fpmgm evaluate` measures, with the protocol it was measured by."""
    model = load(command.model)
    judge = load_judge(command.judge) if command.judge else None
    samples = []
    for budget in command.budgets:
        out = generate(model, num_samples=command.num_samples, budget=budget, seed=command.seed)
        row: dict[str, Any] = {"budget": budget, "block_evals": out.block_evals, "seconds": out.seconds}
        row["entropy"] = float(unigram_entropy(torch.tensor(out.tokens)).mean())
        if judge:
            row["generative_perplexity"] = asdict(generative_perplexity(out.texts, judge))
        samples.append(row)
    text = _text_for(model, command.data)
    rows = text.validation[:: max(1, len(text.validation) // command.validation_sequences)]
    held_out = text.rows[rows[: command.validation_sequences]]
    floor = floors(text.rows[text.train], held_out, vocab_size=model.config.vocab_size) if command.ngram else {}
    bound = perplexity(model.denoiser, torch.from_numpy(held_out.astype("int64")))
    return {
        "protocol": {**asdict(command), "length": model.config.length},
        "validation": asdict(bound),
        "ngram": floor,
        "num_training_sequences": len(text.train),
        "judge": judge.name if judge else "",
        "samples": samples,
    }


def _text_for(model: Model, source: str) -> PackedText:
    """A text packed with the model's own tokenizer and length."""
    with TemporaryDirectory() as folder:
        tokenizer = Path(folder) / "tokenizer.json"
        tokenizer.write_text(model.tokenizer)
        return load_text(TextConfig(source=source, tokenizer=str(tokenizer), length=model.config.length))


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

    api = HfApi()
    api.create_repo(command.name, private=command.private, exist_ok=True)
    print(
        api.upload_folder(repo_id=command.name, folder_path=folder, commit_message="Upload an fpmgm model").commit_url
    )
