"""The shape of the code: who may import whom, what is public, how long a file may be."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fpmgm
from scripts.architecture import PICTURE, imported_by, module_of, picture

PACKAGE = Path(fpmgm.__file__).parent
ROOT = PACKAGE.parent
FILES = sorted(PACKAGE.rglob("*.py"))

LAYERS = [
    {"types", "names", "schema", "hub", "progress", "provenance", "files", "pictures"},
    {"devices", "symbols", "places", "products"},
    {"randomness", "draws", "masking", "head_loss", "gelu", "sums", "locks", "cluster", "positionwise"},
    {"solvers", "reuse", "transitions", "budget", "guidance"},
    {"remasking", "resting"},
    {"gradients", "injection"},
    {"denoiser"},
    {"backbones"},
    {"sampling", "objectives", "codecs", "int8"},
    {"post_training", "data"},
    {"checkpoint"},
    {"generation"},
    {"interop"},
    {"evaluation", "replay", "hf"},
    {"training", "analysis"},
    {"recipes", "serving"},
    {"experiments"},
    {"demo"},
    {"quickstart", "commands"},
    {"__main__"},
]
"""A file may import from the layers above its own; within a layer files do not know each other."""

FRAME = ["sampling.py", "generation.py", "training/loop.py", "training/card.py", "evaluation/sweep.py"]
FRAME += ["experiments/contestants.py"]
"""What works with any kind of data and network."""
SPECIAL = {"codecs.text", "data.text", "data.sources", "data.stories", "data.stories_text", "backbones.dit", "symbols"}
SPECIAL |= {f"evaluation.{name}" for name in ("text", "judges", "likelihood", "mauve", "ngram", "diversity")}
SPECIAL |= {"evaluation.stories_judge", "evaluation.images", "evaluation.image_judges", "evaluation.reconstruction"}
SPECIAL |= {"codecs.images", "codecs.pixels", "codecs.image_tokenizer", "data.images", "data.pixels", "pictures"}
SPECIAL |= {"backbones.maskgit", "backbones.vq", "backbones.classifier", "data.packing", "data.pairs"}
"""What knows that data is text or images, or which network it is."""


def layer_of(name: str) -> int:
    return next(index for index, layer in enumerate(LAYERS) if name in layer)


def names_imported_by(path: Path) -> set[str]:
    """All that a file imports from the package, as `module.name`."""
    return {
        f"{node.module}.{alias.name}".removeprefix("fpmgm.")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fpmgm")
        for alias in node.names
    }


@pytest.mark.parametrize("name", FRAME)
def test_the_frame_names_neither_text_nor_images(name: str) -> None:
    found = names_imported_by(PACKAGE / name)
    assert not [each for each in found if each.rpartition(".")[0] in SPECIAL or each in SPECIAL]
    assert not [each for each in found if each.rpartition(".")[2].startswith(("Text", "Image", "MDLM"))]


def test_the_drawing_of_the_architecture_is_that_of_the_imports() -> None:
    assert PICTURE.read_text() == picture(), "run python scripts/architecture.py"


def test_there_is_one_sampling_loop_and_one_training_loop() -> None:
    """Steps call `fixed_point_map` through the sampler or the forward pass; only one file steps an optimiser."""
    texts = {str(path.relative_to(PACKAGE)): path.read_text() for path in FILES}
    assert [name for name, text in texts.items() if "transition.write(" in text] == ["sampling.py"]
    stepping = {name for name, text in texts.items() if "optimiser.step()" in text}
    assert stepping == {"training/loop.py", "experiments/workloads.py"}  # the second is what benchmarks time


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_import_only_from_the_layers_above_them(path: Path) -> None:
    module = module_of(path)
    if module == "__init__":
        return
    allowed = set().union(*LAYERS[: layer_of(module)])
    if path.parent != PACKAGE:
        allowed.add(module)  # files of one folder may know each other
    if module == "__main__":
        allowed.add("__init__")
    assert imported_by(path) <= allowed


def test_every_module_has_its_layer() -> None:
    assert {module_of(path) for path in FILES} - {"__init__"} == set().union(*LAYERS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_file_is_longer_than_400_lines_and_each_says_what_it_is(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    assert ast.get_docstring(ast.parse(text))


def test_the_public_names_are_spelled_out_and_there() -> None:
    assert fpmgm.__all__ == sorted(set(fpmgm.__all__))
    for name in fpmgm.__all__:
        assert hasattr(fpmgm, name), name
    imported = {
        alias.name
        for node in ast.walk(ast.parse((PACKAGE / "__init__.py").read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fpmgm.")
        for alias in node.names
    }
    assert imported == set(fpmgm.__all__)


def test_every_public_function_and_class_has_a_docstring() -> None:
    missing = []
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                continue
            if node.name in fpmgm.__all__ and not ast.get_docstring(node):
                missing.append(f"{path.name}: {node.name}")
    assert not missing


def test_importing_fpmgm_imports_torch_and_nothing_heavier() -> None:
    heavy = {"accelerate", "datasets", "diffusers", "gradio", "huggingface_hub", "matplotlib", "rich", "tokenizers"}
    heavy |= {"transformers", "tyro", "pandas", "scipy", "sklearn", "fastapi", "uvicorn", "openai", "ray"}
    code = "import sys, fpmgm; print(' '.join(name for name in sys.modules if '.' not in name))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "torch" in loaded
    assert heavy.isdisjoint(loaded)


def test_functions_that_need_more_than_torch_come_when_they_are_asked_for() -> None:
    assert set(fpmgm.LATE) <= {*fpmgm.__all__, *dir(fpmgm)}
    for name, module in fpmgm.LATE.items():
        assert getattr(fpmgm, name).__module__ == module
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        fpmgm.__getattr__("trian")


def test_scripts_and_benchmarks_import_the_library_and_no_command() -> None:
    for path in (*ROOT.glob("scripts/*.py"), *ROOT.glob("benchmarks/*.py")):
        assert "commands" not in imported_by(path), path


def test_no_registry_host_is_named_in_the_project() -> None:
    hosts = [".".join(parts) for parts in (("pypi", "org"), ("npmjs", "org"), ("deb.debian", "org"))]
    hosts.append(".".join(("pythonhosted", "org")))
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, tracked):
        text = (ROOT / name).read_text(errors="ignore") if (ROOT / name).is_file() else ""
        assert not any(host in text for host in hosts), name
