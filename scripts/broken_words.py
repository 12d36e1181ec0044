"""How many words of a model's stories are broken: python scripts/broken_words.py MODEL ... [--budget 96]

A word is broken if the training stories have it less than twice. Real words can be so rare too, so held-out stories
stand beside the models. Needs the corpus: `fpmgm prepare stories`.
"""

import argparse
import re
from collections import Counter
from collections.abc import Sequence

from fpmgm import generate, load
from fpmgm.data.stories import workshop
from fpmgm.evaluation.threads import use_threads
from fpmgm.recipes.stories import STORIES

WORD = re.compile(r"[^\W\d_]+")


def words_of(text: str) -> list[str]:
    return [word.lower() for word in WORD.findall(text)]


def shares(texts: Sequence[str], known: Counter[str]) -> tuple[float, float]:
    """The share of words that are broken, and of texts that have any."""
    broken = [sum(known[word] < 2 for word in words_of(text)) for text in texts]
    return sum(broken) / sum(len(words_of(text)) for text in texts), sum(map(bool, broken)) / len(texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["stories", "stories-fp", "stories-mdlm"])
    parser.add_argument("--budget", type=int, default=96)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[1.0, 0.8])
    parser.add_argument("--num-samples", type=int, default=128)
    parser.add_argument("--size", type=int, default=STORIES.size)
    asked = parser.parse_args()
    making = workshop()
    known = Counter(word for shard in making.train(asked.size) for text in shard.texts() for word in words_of(text))
    print("| stories | temperature | broken words | stories with any |\n| --- | --- | --- | --- |")
    real = shares([*making.held_out().texts()], known)
    print(f"| held out | | {real[0]:.2%} | {real[1]:.0%} |", flush=True)
    for name in asked.models:
        model = load(name)
        use_threads(model.config, asked.num_samples)
        for temperature in asked.temperatures:
            out = generate(model, num_samples=asked.num_samples, budget=asked.budget, temperature=temperature)
            found = shares(out.texts, known)
            print(f"| {name} | {temperature:g} | {found[0]:.2%} | {found[1]:.0%} |", flush=True)


if __name__ == "__main__":
    main()
