"""Sections of the paper's main tables: who is better at equal budgets, and what each component adds."""

from fpmgm.evaluation.plots import lines_by_update
from fpmgm.experiments.parts import Part, Reading
from fpmgm.experiments.text_mini.compared import compared_part
from fpmgm.experiments.text_mini.history import history
from fpmgm.experiments.text_mini.lines import (
    ADAPTED,
    FP,
    FRESH,
    MDLM,
    cofre,
    every_reuse,
    plain,
    reusing,
    staged,
    table_of,
)
from fpmgm.experiments.text_mini.page import Page
from fpmgm.experiments.text_mini.section import Section, Table


def main_tables(page: Page) -> tuple[Table, ...]:
    """The headline, with seeds of training."""
    sizes = page.sizes
    lines = (plain(MDLM), plain(staged("MDLM + SDTT", sizes.seeds)), reusing(FP, "three-state"), cofre(sizes.seeds))
    return (
        Table(
            lines=lines,
            budgets=sizes.budgets,
            pairs=(("CoFRe", "MDLM + SDTT"), ("CoFRe", "MDLM"), ("CoFRe", "FP-MDLM, three-state")),
            temperatures=sizes.temperatures,
            num_samples=sizes.many,
            num_seeds=sizes.seeds,
        ),
    )


def plain_tables(page: Page) -> tuple[Table, ...]:
    """Plain against fixed point, from low to high budgets."""
    lines = (plain(MDLM), reusing(FP, "none"))
    return (table_of(page, lines, (("FP-MDLM, no reuse", "MDLM"),), page.sizes.high, page.sizes.few),)


def component_tables(page: Page) -> tuple[Table, ...]:
    """Every component, and every kind of reuse."""
    cons = staged("FP-MDLM + L_CONS")
    lines = (plain(MDLM), *every_reuse(FP), *every_reuse(cons), *every_reuse(ADAPTED))
    pairs = (
        ("FP-MDLM + L_CONS, no reuse", "FP-MDLM, no reuse"),
        ("FP-MDLM + L_CONS, three-state", "MDLM"),
    )
    return (table_of(page, lines, pairs, page.sizes.budgets, page.sizes.few),)


def reuse_tables(page: Page) -> tuple[Table, ...]:
    """None, full and three-state on three models: the samples are those of the components."""
    return tuple(
        table_of(
            page,
            every_reuse(model),
            (
                (f"{model.name}, three-state", f"{model.name}, no reuse"),
                (f"{model.name}, three-state", f"{model.name}, full reuse"),
                (f"{model.name}, full reuse", f"{model.name}, no reuse"),
            ),
            page.sizes.budgets,
            page.sizes.few,
        )
        for model in (FP, ADAPTED, staged("FP-MDLM + L_CONS"))
    )


def adapted_tables(page: Page) -> tuple[Table, ...]:
    """Adapted against base, without reuse."""
    lines = (reusing(FP, "none"), reusing(ADAPTED, "none"))
    pairs = (("adapted FP-MDLM, no reuse", "FP-MDLM, no reuse"),)
    return (table_of(page, lines, pairs, page.sizes.budgets, page.sizes.few),)


def mdlm_tables(page: Page) -> tuple[Table, ...]:
    """L_CONS and SDTT on MDLM, beside CoFRe."""
    lines = (plain(MDLM), plain(staged("MDLM + L_CONS")), plain(staged("MDLM + SDTT")), cofre())
    pairs = (
        ("MDLM + L_CONS", "MDLM"),
        ("MDLM + SDTT", "MDLM"),
        ("MDLM + SDTT", "MDLM + L_CONS"),
        ("CoFRe", "MDLM + SDTT"),
    )
    return (table_of(page, lines, pairs, page.sizes.budgets, page.sizes.few),)


def other_tables(page: Page) -> tuple[Table, ...]:
    """Distribution matching, our method of IDLM's kind, on both networks, and SDTT on the fixed point."""
    matched = staged("FP-MDLM + matching")
    lines = (
        cofre(),
        plain(staged("MDLM + matching")),
        plain(matched),
        plain(staged("FP-MDLM + SDTT")),
    )
    pairs = (
        ("MDLM + matching", "CoFRe"),
        ("FP-MDLM + matching", "CoFRe"),
        ("FP-MDLM + matching", "MDLM + matching"),
        ("FP-MDLM + SDTT", "CoFRe"),
    )
    return (table_of(page, lines, pairs, page.sizes.pair, page.sizes.few),)


def initialised_tables(page: Page) -> tuple[Table, ...]:
    """Adaptation with and without the layers of the source, every reuse."""
    pairs = tuple(
        (ours.name, theirs.name) for ours, theirs in zip(every_reuse(ADAPTED), every_reuse(FRESH), strict=True)
    )
    return (table_of(page, (*every_reuse(FRESH), *every_reuse(ADAPTED)), pairs, page.sizes.pair, page.sizes.few),)


def _initialised(page: Page) -> Part:
    part = compared_part(page, initialised_tables(page), "initialised", ["initialised"])
    curves = {each.name: history(page, each).losses for each in (FRESH, ADAPTED)}
    lines_by_update(curves, "cross entropy, nats a token", page.folder / "adaptation")
    apart = [
        first - second for (_, first), (_, second) in zip(*(curves[e.name] for e in (ADAPTED, FRESH)), strict=False)
    ]
    reading = Reading("over all updates", sum(apart) / len(apart), min(apart), max(apart))
    words = (
        "![Loss of adaptation, with and without the layers of the source](adaptation.png)\n\n"
        f"The loss with the layers of the source, less that without them: {reading} nats, the mean, the least and the "
        "most of all updates, which saw the same sequences and masks."
    )
    return part + Part(text=words, readings={"loss": [reading]})


def nucleus_tables(page: Page) -> tuple[Table, ...]:
    """With and without the nucleus."""
    lines = (
        plain(MDLM),
        plain(MDLM, "MDLM, top-p 0.9", top_p=0.9),
        cofre(),
        cofre(top_p=0.9)._replace(name="CoFRe, top-p 0.9"),
    )
    pairs = (("MDLM, top-p 0.9", "MDLM"), ("CoFRe, top-p 0.9", "CoFRe"), ("CoFRe, top-p 0.9", "MDLM, top-p 0.9"))
    return (table_of(page, lines, pairs, page.sizes.pair, page.sizes.few),)


def _others(page: Page) -> Part:
    note = (
        "IDLM distils by matching distributions, and so does our stage `matching`. There is no PGM here: its rows are "
        "quoted."
    )
    return Part(text=note) + compared_part(page, other_tables(page), "other-methods", ["other-methods"])


SECTIONS = (
    Section(
        name="main",
        title="Main results: CoFRe and MDLM + SDTT",
        of_paper="the main table (left half), Figure 1 (left)",
        run=lambda page: compared_part(page, main_tables(page), "main", ["main"]),
        tables=main_tables,
    ),
    Section(
        name="components",
        title="What each component adds",
        of_paper="the component ablation for FP-MDLM",
        run=lambda page: compared_part(page, component_tables(page), "components", ["components"]),
        tables=component_tables,
    ),
    Section(
        name="reuse",
        title="No reuse, full reuse and three-state reuse on base, adapted and L_CONS models",
        of_paper="the figure of warm starts; its numbers are quoted under [components](#components)",
        run=lambda page: compared_part(page, reuse_tables(page), "reuse"),
        tables=reuse_tables,
    ),
    Section(
        name="adapted",
        title="Adapted against base",
        of_paper="the figure of the adapted FP-MDLM; its numbers are quoted under [components](#components)",
        run=lambda page: compared_part(page, adapted_tables(page), "adapted"),
        tables=adapted_tables,
    ),
    Section(
        name="mdlm-stages",
        title="L_CONS and SDTT on MDLM",
        of_paper="the comparison of MDLM variants and CoFRe",
        run=lambda page: compared_part(page, mdlm_tables(page), "mdlm-stages", ["mdlm-stages"]),
        tables=mdlm_tables,
    ),
    Section(
        name="plain",
        title="Plain against fixed point, from low to high budgets",
        of_paper="the table of MDLM and FP-MDLM across budgets",
        run=lambda page: compared_part(page, plain_tables(page), "plain", ["plain"]),
        tables=plain_tables,
    ),
    Section(
        name="initialised",
        title="Adaptation with and without the layers of the source",
        of_paper="both tables of initialisation, and the figure of its loss",
        run=_initialised,
        tables=initialised_tables,
    ),
    Section(
        name="other-methods",
        title="Other distilled models",
        of_paper="the comparison with PGM and IDLM, table and figure",
        run=_others,
        tables=other_tables,
    ),
    Section(
        name="nucleus",
        title="The nucleus",
        of_paper="the table of nucleus sampling",
        run=lambda page: compared_part(page, nucleus_tables(page), "nucleus", ["nucleus"]),
        tables=nucleus_tables,
    ),
)
