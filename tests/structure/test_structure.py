"""The shape of the code: who may import whom, what is public, how long a file may be."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fpmgm

PACKAGE = Path(fpmgm.__file__).parent
ROOT = PACKAGE.parent
FILES = sorted(PACKAGE.rglob("*.py"))

LAYERS = [
    {"types", "names", "symbols", "provenance", "layer_map", "pickled"},
    {"randomness", "draws", "masking", "head_loss", "share"},
    {"solvers", "reuse", "transitions", "budget"},
    {"gradients", "injection"},
    {"denoiser"},
    {"backbones"},
    {"sampling", "objectives", "checkpoint"},
    {"teachers"},
    {"consistency", "sdtt"},
    {"generation", "data", "foreign", "convert"},
    {"evaluation", "replay"},
    {"training", "analysis"},
    {"recipes"},
    {"quickstart", "commands"},
    {"__main__"},
]
"""A file may import from the layers above its own; within a layer files do not know each other."""


def layer_of(name: str) -> int:
    return next(index for index, layer in enumerate(LAYERS) if name in layer)


def module_of(path: Path) -> str:
    """The first name below the package: a file's own, or its folder's."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    """The fpmgm modules that a file imports, found without running it; `__init__` for the package itself."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            parts = (node.module or "").split(".")
            if parts == ["fpmgm"]:
                found |= {alias.name if (PACKAGE / alias.name).exists() else "__init__" for alias in node.names}
            elif parts[0] == "fpmgm":
                found.add(parts[1])
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.split(".")[0] == "fpmgm"]
            found |= {[*name.split("."), "__init__"][1] for name in names}
    return found


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
    assert imports_of(path) <= allowed


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
        if isinstance(node, ast.ImportFrom)
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
    heavy |= {"transformers", "tyro", "pandas", "scipy", "sklearn"}
    code = "import sys, fpmgm; print(' '.join(name for name in sys.modules if '.' not in name))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "torch" in loaded
    assert heavy.isdisjoint(loaded)


def test_the_readme_shows_every_file_of_the_method() -> None:
    readme = (ROOT / "README.md").read_text()
    for path in PACKAGE.glob("*.py"):
        assert path.name in readme, path.name


def test_no_registry_host_is_named_in_the_project() -> None:
    hosts = [".".join(parts) for parts in (("pypi", "org"), ("npmjs", "org"), ("deb.debian", "org"))]
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, tracked):
        text = (ROOT / name).read_text(errors="ignore") if (ROOT / name).is_file() else ""
        assert not any(host in text for host in hosts), name
