"""Mistakes in a definition that would only be found out hours later."""

from __future__ import annotations

from collections.abc import Sequence

from aoq.errors import UserError
from aoq.experiments.definitions.parts import Definition, Row


def require_sound(definition: Definition) -> None:
    """Refuse what would only be found out hours later."""
    where = definition.source
    if "/" in definition.name or not definition.name.strip("."):
        raise UserError(f"{where}: the name {definition.name!r} is no name of a folder.")
    own = [row.seeds for row in definition.rows if row.seeds]
    for seeds in (definition.seeds, *own, *(row.seeds for row in definition.made_of_rows)):
        sound = all(type(seed) is int and seed >= 0 for seed in seeds)
        if not seeds or not sound or len(set(seeds)) < len(seeds):
            raise UserError(
                f"{where}: seeds is {list(seeds)}; expected whole numbers from 0 on, each once."
            )
    folders: dict[str, str] = {}
    for row in definition.rows:
        if not set(row.seeds) <= set(definition.seeds):
            raise UserError(
                f"{where}: row {row.label!r} has seeds {list(row.seeds)}; expected some of the "
                f"experiment's, {list(definition.seeds)}."
            )
        first = folders.setdefault(definition.folder_of(row), row.label)
        if first != row.label or row is not definition.row(row.label):
            raise UserError(
                f"{where}: the rows {first!r} and {row.label!r} would be one run; give each a "
                "label and a recipe of its own."
            )
    for row in definition.rows:
        _require_depth(definition, row)
    _require_labels(definition)
    _require_members(definition)
    _require_candidates(definition)
    _require_paper(definition)
    _require_claims(definition)


def _require_depth(definition: Definition, row: Row) -> None:
    """A teacher has to be one, and its lists as deep as the row draws."""
    recipe, teacher = definition.recipe_of(row), definition.teacher_of(row)
    if teacher is None or not recipe.needs_lists:
        return
    where, mines = f"{definition.source}: row {row.label!r}", definition.recipe_of(teacher)
    if mines.rounds != "one":
        raise UserError(
            f"{where}: its teacher {teacher.label!r} does not end with round one; name a row or a "
            "recipe that does (+online)."
        )
    for depth in ("depth_texts", "depth_images"):
        drawn, kept = getattr(recipe.sampling, depth), getattr(mines.mining, depth)
        if drawn > kept:
            raise UserError(
                f"{where} draws from lists with {depth} {drawn}, but its teacher "
                f"{teacher.label!r} keeps {kept}; raise {depth} in [mining]."
            )


def _require_labels(definition: Definition) -> None:
    labels = [row.label for row in definition.rows]
    for row in definition.made_of_rows:
        if row.label in labels:
            raise UserError(
                f"{definition.source}: {row.label!r}: something else has this label; choose "
                "another."
            )
        labels.append(row.label)


def _require_candidates(definition: Definition) -> None:
    """A choice is between two rows or more, trained with the seeds that it goes by."""
    taken: set[str] = set()
    for choice in definition.choices:
        where = f"{definition.source}: choice {choice.label!r}"
        if len(set(choice.of)) < 2 or taken & set(choice.of):
            raise UserError(
                f"{where}: of is {list(choice.of)}; expected the labels of two rows or more that "
                "are in no other choice."
            )
        taken |= set(choice.of)
        for label in choice.of:
            _require_seeds(definition, label, choice.seeds, where=f"{where}: its row")


def _require_seeds(definition: Definition, label: str, seeds: Sequence[int], *, where: str) -> None:
    trained = definition.seeds_of(definition.row(label))
    for seed in seeds:
        if seed not in trained:
            raise UserError(
                f"{where} {label!r} with seed {seed} is never trained; its seeds are "
                f"{list(trained)}."
            )


def _require_members(definition: Definition) -> None:
    """Ensembles have at least two members, each a row and a seed of it."""
    for ensemble in definition.ensembles:
        where = f"{definition.source}: ensemble {ensemble.label!r}"
        if len(ensemble.members) < 2 or not all(isinstance(m, str) for m in ensemble.members):
            raise UserError(
                f"{where}: members is {list(ensemble.members)}; expected the labels of two rows or "
                "more, or 'LABEL, seed N'."
            )
        members = [member for seed in ensemble.seeds for member in ensemble.with_seed(seed)]
        for label, seed in members:
            _require_seeds(definition, label, [seed], where=f"{where}: its member")


def _require_paper(definition: Definition) -> None:
    if definition.paper is None:
        return
    for label, rsum in definition.paper.rsum.items():
        if label not in definition.labels or not isinstance(rsum, float):
            raise UserError(
                f"{definition.source}: paper has {label!r} = {rsum!r}; expected the label of a row "
                "and its rsum, as in 518.6."
            )


def _require_claims(definition: Definition) -> None:
    for claim in definition.claims:
        if claim.than and len(claim.than) != len(claim.rows):
            raise UserError(
                f"{definition.source}: the claim {claim.says!r} holds {len(claim.rows)} rows "
                f"against {len(claim.than)}; expected one each."
            )
        for label in (*claim.rows, *claim.than):
            if label not in definition.labels:
                raise UserError(
                    f"{definition.source}: the claim {claim.says!r} is about {label!r}; expected "
                    f"one of: {', '.join(map(repr, definition.labels))}."
                )
