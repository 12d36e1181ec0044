"""Put frontiers into bundled models: python scripts/bundle_frontier.py docs/results/frontier NAME=LINE [NAME=LINE ...]

The report.json and the card of each bundled model NAME gain the points and pairs of LINE, a line of the page.
"""

import sys
from pathlib import Path

from fpmgm.checkpoint import BUNDLED
from fpmgm.evaluation.frontier_page import RESULTS, store_report
from fpmgm.schema import read_json


def main(folder: Path, lines: list[str]) -> None:
    whole = read_json(folder / RESULTS)
    for each in lines:
        name, _, line = each.partition("=")
        store_report(BUNDLED / name, whole, line)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
