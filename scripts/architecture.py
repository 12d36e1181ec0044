"""Draws docs/architecture.svg, the layers of the package, from its imports: python scripts/architecture.py

A module stands below all that it imports. Files of the method stand for themselves, folders for all their files. A line
leads from a module to what it imports, unless another import of its leads there too.
"""

import ast
import sys
from collections.abc import Mapping
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "fpmgm"
PICTURE = ROOT / "docs" / "architecture.svg"

Imports = Mapping[str, frozenset[str]]

ABOUT = {
    "backbones": "networks",
    "codecs": "requests, tokens",
    "data": "data sets",
    "post_training": "objectives with teachers",
    "interop": "other people's models",
    "evaluation": "metrics, sweeps",
    "analysis": "a look inside",
    "training": "one loop",
    "recipes": "runs by name",
    "experiments": "contests",
    "commands": "thin leaves",
}
BOX, GAP, ROW, MARGIN = (118, 34), 14, 92, 24


def module_of(path: Path) -> str:
    """The first name below the package: a file's own, or its folder's."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_by(path: Path) -> set[str]:
    """The modules of the package that a file imports, found without running it; `__init__` for the package itself."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"{path} has a relative import")
            parts = (node.module or "").split(".")
            if parts == ["fpmgm"]:
                names = [alias.name for alias in node.names]
                found |= {name if _is_module(name) else "__init__" for name in names}
            elif parts[0] == "fpmgm":
                found.add(parts[1])
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.split(".")[0] == "fpmgm"]
            found |= {[*name.split("."), "__init__"][1] for name in names}
    return found


def _is_module(name: str) -> bool:
    return (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()


def imports() -> Imports:
    """What each module of the package imports, itself and the package's own names left out."""
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        module = module_of(path)
        if module != "__init__":
            found.setdefault(module, set()).update(imported_by(path) - {module, "__init__"})
    return {module: frozenset(names) for module, names in found.items()}


def layers(graph: Imports) -> list[list[str]]:
    """Modules by depth: each below all that it imports. A ValueError if two import each other, however far around."""
    depths: dict[str, int] = {}

    def depth(module: str, above: tuple[str, ...] = ()) -> int:
        if module in above:
            raise ValueError(f"modules import each other: {' <- '.join([*above[above.index(module) :], module])}")
        if module not in depths:
            depths[module] = 1 + max((depth(name, (*above, module)) for name in graph[module]), default=-1)
        return depths[module]

    for module in graph:
        depth(module)
    return [[name for name in graph if depths[name] == level] for level in range(max(depths.values()) + 1)]


def direct(graph: Imports) -> list[tuple[str, str]]:
    """(module, what it imports), without imports that follow from others."""

    def reached(module: str) -> frozenset[str]:
        return graph[module].union(*(reached(name) for name in graph[module]))

    return [
        (module, name)
        for module, names in graph.items()
        for name in sorted(names)
        if not any(name in reached(other) for other in names - {name})
    ]


def picture() -> str:
    """The drawing, as SVG."""
    graph = imports()
    rows = layers(graph)
    width = 2 * MARGIN + max(len(row) * (BOX[0] + GAP) - GAP for row in rows)
    height = 2 * MARGIN + len(rows) * ROW - (ROW - BOX[1])
    places: dict[str, tuple[float, float]] = {}
    for level, row in enumerate(rows):
        left = (width - len(row) * (BOX[0] + GAP) + GAP) / 2
        for index, module in enumerate(row):
            places[module] = (left + index * (BOX[0] + GAP), MARGIN + level * ROW)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" font-family="sans-serif">',
        f'<rect width="{width:g}" height="{height:g}" fill="white"/>',
        *(_line(places[module], places[name]) for module, name in direct(graph)),
        *(_box(module, *places[module]) for module in places),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _line(low: tuple[float, float], high: tuple[float, float]) -> str:
    x1, y1, x2, y2 = low[0] + BOX[0] / 2, low[1], high[0] + BOX[0] / 2, high[1] + BOX[1]
    middle = (y1 + y2) / 2
    path = f"M{x1:g} {y1:g}C{x1:g} {middle:g} {x2:g} {middle:g} {x2:g} {y2:g}"
    return f'<path d="{path}" fill="none" stroke="#0072b2" stroke-opacity="0.35"/>'


def _box(module: str, x: float, y: float) -> str:
    is_folder = (PACKAGE / module).is_dir()
    fill, name = ("#fdebd0", f"{module}/") if is_folder else ("#e8f1f8", module)
    about = ABOUT.get(module, "")
    middle = x + BOX[0] / 2
    texts = [f'<text x="{middle:g}" y="{y + (15 if about else 21):g}" font-size="12">{escape(name)}</text>']
    if about:
        texts.append(f'<text x="{middle:g}" y="{y + 28:g}" font-size="9" fill="#555">{escape(about)}</text>')
    box = f'<rect x="{x:g}" y="{y:g}" width="{BOX[0]}" height="{BOX[1]}" rx="5" fill="{fill}" stroke="#888"/>'
    return f'<g text-anchor="middle">{box}{"".join(texts)}</g>'


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
    print(f"wrote {PICTURE.relative_to(ROOT)}", file=sys.stderr)
