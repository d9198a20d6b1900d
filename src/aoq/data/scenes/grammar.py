"""The grammar: how a true sentence about a scene is written.

Each rule returns a `Phrase`, a piece of text together with the facts it states, and phrases can be
added. The claims of a sentence are thus known exactly and are never parsed from the text. A
sentence mentions some groups and some of their details; `FORMS` lists its possible shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from aoq.data.scenes.words import (
    CORNER_WORDS,
    COUNT_WORDS,
    HEIGHT_WORDS,
    JOINTS,
    NOUNS,
    PATTERN_ENDINGS,
    PATTERN_WORDS,
    PICTURES,
    RELATION_WORDS,
    SETTING_WORDS,
    SHOWN,
    SIDE_WORDS,
    SIGHTS,
    SIZE_WORDS,
)
from aoq.data.scenes.world import COLUMNS, ROWS, Fact, Group, Scene, facts

CHANCE_OF_A_DETAIL = 0.3
CHANCE_OF_A_TELLING_DETAIL = 0.85
CHANCE_OF_AN_ENDING = 0.25  # "a cup with stripes" instead of "a striped cup"
CHANCE_OF_THE_SETTING_FIRST = 0.3
WEIGHT_OF_A_TELLING_GROUP = 2.0

SPATIAL = ("left of", "right of", "above", "below")


@dataclass(frozen=True)
class Phrase:
    """A piece of a sentence and every fact that it states."""

    text: str
    facts: frozenset[Fact] = frozenset()
    plural: bool = False

    def __add__(self, other: Phrase | str) -> Phrase:
        """Join both pieces; the first decides the number of the verb."""
        following = Phrase(other) if isinstance(other, str) else other
        gap = "" if following.text.startswith(",") else " "
        text = self.text + gap + following.text
        return Phrase(text, self.facts | following.facts, self.plural)

    @property
    def verb(self) -> str:
        """The form of "to be" that agrees with the phrase."""
        return "are" if self.plural else "is"


class Writer:
    """Words for the groups of one sentence, with "the ball" after "a ball" was mentioned."""

    def __init__(self, scene: Scene, *, emphasis: frozenset[Fact], random: Random) -> None:
        """Create a writer that mentions the distinguishing facts in `emphasis` more often."""
        self.scene = scene
        self.random = random
        self.article = "a"
        self._truths = facts(scene)
        self._emphasis = emphasis
        self._mentioned: set[str] = set()

    def begin(self, article: str) -> None:
        """Start a sentence that introduces single things by "a" or by "the"."""
        self.article = article
        self._mentioned.clear()

    def topics(self, count: int) -> list[Group]:
        """Choose groups to write about in random order, preferring those with emphasised facts."""
        telling = {fact.subject for fact in self._emphasis}

        def interest(group: Group) -> float:
            weight = WEIGHT_OF_A_TELLING_GROUP if group.kind in telling else 1.0
            return weight * self.random.random()

        topics = sorted(self.scene.groups, key=interest, reverse=True)[:count]
        self.random.shuffle(topics)
        return topics

    def mentions(self, detail: Fact) -> bool:
        """Decide whether to mention a detail."""
        telling = detail in self._emphasis
        chance = CHANCE_OF_A_TELLING_DETAIL if telling else CHANCE_OF_A_DETAIL
        return self.random.random() < chance

    def thing(self, group: Group) -> Phrase:
        """Write a noun with some of its details."""
        noun = self.random.choice(NOUNS[group.kind])
        name = noun.one if group.count == 1 else noun.many
        count = frozenset({Fact(group.kind, "count", str(group.count))})
        if group.kind in self._mentioned:
            return Phrase(f"the {name}", count, plural=group.count > 1)
        self._mentioned.add(group.kind)

        details = {
            attribute: detail
            for attribute in ("size", "colour", "pattern")
            if self.mentions(detail := Fact(group.kind, attribute, getattr(group, attribute)))
        }
        words = self._arranged(name, details)
        text = f"{self._determiner(group, words)} {words}"
        return Phrase(text, count.union(details.values()), plural=group.count > 1)

    def _arranged(self, name: str, details: dict[str, Fact]) -> str:
        """Order size, colour and pattern, the noun, and perhaps the pattern at the end."""
        words = {"size": "", "colour": "", "pattern": "", "noun": name, "ending": ""}
        if "size" in details:
            words["size"] = self.random.choice(SIZE_WORDS[details["size"].value])
        if "colour" in details:
            words["colour"] = details["colour"].value
        if "pattern" in details:
            at_end = self.random.random() < CHANCE_OF_AN_ENDING
            slot, table = ("ending", PATTERN_ENDINGS) if at_end else ("pattern", PATTERN_WORDS)
            words[slot] = self.random.choice(table[details["pattern"].value])
        looks = self.random.choice((("colour", "pattern"), ("pattern", "colour")))
        order = ("size", *looks, "noun", "ending")
        return " ".join(words[slot] for slot in order if words[slot])

    def _determiner(self, group: Group, following: str) -> str:
        if group.count > 1:
            number = self.random.choice(COUNT_WORDS[group.count])
            return number if self.article == "a" else f"the {COUNT_WORDS[group.count][0]}"
        if self.article == "a" and following[0] in "aeiou":
            return "an"
        return self.article

    def relation(self, first: Group, second: Group) -> Fact:
        """Choose a relation of the first group to the second, preferably an emphasised one."""
        known = [
            fact
            for predicate in RELATION_WORDS
            if (fact := Fact(first.kind, predicate, second.kind)) in self._truths
        ]
        telling = [fact for fact in known if fact in self._emphasis]
        return self.random.choice(telling or known)

    def words_of(self, relation: Fact) -> Phrase:
        """Write a relation in words."""
        text = self.random.choice(RELATION_WORDS[relation.predicate])
        return Phrase(text, frozenset({relation}))

    def related(self, first: Group, second: Group) -> Phrase:
        """Write what follows "is" to relate the first group to the second."""
        return self.words_of(self.relation(first, second)) + self.thing(second)

    def place(self, group: Group) -> Phrase:
        """Write where in the picture a group is."""
        row, column = ROWS[group.cell.row], COLUMNS[group.cell.column]
        height, side = Fact(group.kind, "height", row), Fact(group.kind, "side", column)
        words, stated = self.random.choice(
            (
                (CORNER_WORDS[row, column], {height, side}),
                (HEIGHT_WORDS[row], {height}),
                (SIDE_WORDS[column], {side}),
            )
        )
        return Phrase(self.random.choice(words), frozenset(stated))


def _listed(writer: Writer, topics: Sequence[Group]) -> Phrase:
    """Write "a ball, a cup and two cars"."""
    first, *middle, last = (writer.thing(group) for group in topics)
    for thing in middle:
        first = first + "," + thing
    return first + "and" + last


def _accompanied(writer: Writer, topics: Sequence[Group]) -> Phrase:
    """Write "a tree with two birds above it", or "a bear holding a cup"."""
    owner, other = topics
    relation = writer.relation(other, owner)
    first = writer.thing(owner)
    if relation.predicate not in SPATIAL:
        return first + writer.related(owner, other)
    pronoun = "them" if first.plural else "it"
    return first + "with" + writer.thing(other) + writer.words_of(relation) + pronoun


def _picture(writer: Writer, topics: Sequence[Group]) -> Phrase:
    return Phrase(writer.random.choice(PICTURES)) + _listed(writer, topics)


def _picture_of_two(writer: Writer, topics: Sequence[Group]) -> Phrase:
    return Phrase(writer.random.choice(PICTURES)) + _accompanied(writer, topics)


def _sight(writer: Writer, topics: Sequence[Group]) -> Phrase:
    return Phrase(writer.random.choice(SIGHTS)) + _listed(writer, topics)


def _shown(writer: Writer, topics: Sequence[Group]) -> Phrase:
    return _listed(writer, topics) + writer.random.choice(SHOWN)


def _there(writer: Writer, topics: Sequence[Group]) -> Phrase:
    first, second = topics
    thing = writer.thing(first)
    return Phrase(f"there {thing.verb}") + thing + writer.related(first, second)


def _there_with(writer: Writer, topics: Sequence[Group]) -> Phrase:
    things = _accompanied(writer, topics)
    return Phrase(f"there {things.verb}") + things


def _statement(writer: Writer, topics: Sequence[Group]) -> Phrase:
    first, second = topics
    thing = writer.thing(first)
    return thing + thing.verb + writer.related(first, second)


def _inverted(writer: Writer, topics: Sequence[Group]) -> Phrase:
    """Write "to the left of a cup is a ball", or "held by a robot is a cup"."""
    first, second = topics
    relation = writer.relation(first, second)
    if relation.predicate == "holds":
        return _statement(writer, topics)
    where = writer.words_of(relation) + writer.thing(second)
    thing = writer.thing(first)
    return where + thing.verb + thing


def _relative(writer: Writer, topics: Sequence[Group]) -> Phrase:
    """Write "the ball that is left of the cup is above the car"."""
    first, second, third = topics
    thing = writer.thing(first)
    clause = thing + "that" + thing.verb + writer.related(first, second)
    return clause + thing.verb + writer.related(first, third)


def _placed(writer: Writer, topics: Sequence[Group]) -> Phrase:
    (group,) = topics
    thing = writer.thing(group)
    return thing + thing.verb + writer.place(group)


def _joined(writer: Writer, one: Phrase, other: Phrase) -> Phrase:
    return one + writer.random.choice(JOINTS) + other


def _two_places(writer: Writer, topics: Sequence[Group]) -> Phrase:
    first, second = topics
    return _joined(writer, _placed(writer, [first]), _placed(writer, [second]))


def _related_and_placed(writer: Writer, topics: Sequence[Group]) -> Phrase:
    *pair, last = topics
    return _joined(writer, _statement(writer, pair), _placed(writer, [last]))


def _two_statements(writer: Writer, topics: Sequence[Group]) -> Phrase:
    first, second, third = topics
    again = writer.random.choice((first, second))
    return _joined(writer, _statement(writer, [first, second]), _statement(writer, [third, again]))


def _two_pairs(writer: Writer, topics: Sequence[Group]) -> Phrase:
    return _joined(writer, _statement(writer, topics[:2]), _statement(writer, topics[2:]))


@dataclass(frozen=True)
class Form:
    """A shape of sentence and the number of groups it mentions."""

    groups: int
    write: Callable[[Writer, Sequence[Group]], Phrase]
    articles: tuple[str, ...] = ("a",)
    setting_can_be_first: bool = True


EITHER = ("a", "the")
FORMS = (
    Form(2, _there),
    Form(2, _there_with),
    Form(2, _statement, articles=EITHER),
    Form(2, _inverted, articles=EITHER),
    Form(2, _two_places, articles=EITHER),
    Form(2, _picture, setting_can_be_first=False),
    Form(2, _picture_of_two, setting_can_be_first=False),
    Form(3, _picture, setting_can_be_first=False),
    Form(3, _sight),
    Form(3, _shown, articles=EITHER),
    Form(3, _relative, articles=EITHER),
    Form(3, _related_and_placed, articles=EITHER),
    Form(3, _two_statements, articles=EITHER),
    Form(4, _sight),
    Form(4, _two_pairs, articles=EITHER),
)


def write_sentence(writer: Writer) -> Phrase:
    """Write a sentence of a random form, perhaps with the setting at one end."""
    scene, random = writer.scene, writer.random
    form = random.choice([form for form in FORMS if form.groups <= len(scene.groups)])
    writer.begin(random.choice(form.articles))
    sentence = form.write(writer, writer.topics(form.groups))

    setting = Fact("scene", "setting", scene.setting)
    if writer.mentions(setting):
        where = Phrase(random.choice(SETTING_WORDS[scene.setting]), frozenset({setting}))
        first = form.setting_can_be_first and random.random() < CHANCE_OF_THE_SETTING_FIRST
        sentence = where + "," + sentence if first else sentence + where
    return Phrase(sentence.text[0].upper() + sentence.text[1:] + ".", sentence.facts)
