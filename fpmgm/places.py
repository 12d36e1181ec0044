"""Places of models: bundled ones, folders, training runs, the hub; and what to do with models of other code."""

from pathlib import Path
from typing import Any

from fpmgm.hub import asking_hub

BUNDLED = Path(__file__).parent / "models"


def find_folder(source: str) -> Path:
    """The model folder of a bundled name, a path or a hub id (owner/name or owner/name@revision), in this order.

    A path is that of a model folder, or that of a run, which has its model in `model`.
    """
    if Path(source).name == source and (BUNDLED / source / "config.json").is_file():
        return BUNDLED / source
    if Path(source).is_dir():
        return model_of_run(Path(source))
    if Path(source).suffix in (".ckpt", ".pt", ".pth", ".bin") and Path(source).is_file():
        raise ValueError(
            f"{source} is no model folder; if it is a checkpoint of MDLM or Halton-MaskGIT, "
            f"{convert_command(source)} makes one"
        )
    name, _, revision = source.partition("@")
    if name.count("/") == 1 and not Path(source).exists() and not source.startswith((".", "/")):
        from huggingface_hub import snapshot_download

        files = ["*.json", "*.safetensors", "README.md"]
        with asking_hub(name):
            return Path(snapshot_download(name, revision=revision or None, allow_patterns=files))
    bundled = sorted(path.name for path in BUNDLED.glob("*")) if BUNDLED.is_dir() else []
    have = f"bundled are {', '.join(bundled)}" if bundled else "none is bundled yet"
    raise ValueError(f"no model at {source!r}; give a model folder or a hub id owner/name ({have})")


def model_of_run(folder: Path) -> Path:
    """The model folder of a run's folder, any other folder as it is; a ValueError if the run has no model yet."""
    model = folder / "model"
    if (folder / "model.safetensors").is_file():
        return folder
    if (model / "config.json").is_file():
        return model
    if _is_run(folder):
        raise ValueError(f"{folder} is a training run that has not written its model yet; its train command goes on")
    return folder


def _is_run(folder: Path) -> bool:
    config = folder / "config.json"
    if config.is_file() and '"data.' in config.read_text(errors="replace"):
        return True
    return (folder / "state").is_dir() or (folder / "metrics.jsonl").is_file() or (folder / "plan.json").is_file()


def convert_hint(place: Path, settings: dict[str, Any]) -> str:
    """What to add to a complaint about a model in MDLM's or SDTT's form: the command that converts it; else nothing."""
    if settings.get("model_type") != "mdlm" and not isinstance(settings.get("model"), dict):
        return ""
    hub = [part.split("--")[1:] for part in place.parts if part.startswith("models--")]
    source = "/".join(hub[-1]) if hub else str(place)
    return f"; {convert_command(source)} makes it one"


def convert_command(source: str) -> str:
    """The command that makes a model of other code one of ours."""
    return f"fpmgm convert {source} runs/{Path(source).stem} --map none"
