"""A damaged file is refused with one sentence, or does not matter; it never changes a result.

Every file of a data set, a run, a run that was killed, an index and lists is damaged in turn, by a
byte, a bit, a run of zeros or a cut at a random place. The commands that read it then either end
with one sentence, or print what they print of the undamaged files and write the same bytes.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from aoq.config import ModelConfig
from aoq.data.build import build_dataset
from aoq.features.regions import RegionSource
from aoq.recipes import save_recipe
from aoq.storage import hash_file, hash_parts
from tests.commands import aoq
from tests.kills import die
from tests.retrieval.conftest import photo_records
from tests.training.cases import small_recipe

pytestmark = pytest.mark.slow
CASES, PARTS = 500, 10
NEVER_READ = (".lock", "tfevents")  # locks are empty, and curves are TensorBoard's
REFUSED = "refused"
VOLATILE = re.compile(r"\d+(\.\d+)? (s|ms|seconds)\b")
VOLATILE_KEYS = {"seconds", "time", "ago"}


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    """A folder with all that people keep, and what each group of commands says of it."""
    pytest.importorskip("efficientnet_lite_pytorch")
    root = tmp_path_factory.mktemp("damage") / "intact"
    records = photo_records(root / "photos")
    build_dataset(records, root / "data", name="squares", source=RegionSource(grid=2))
    place = root.parent / "copy"  # which is damaged; paths in files are its own
    recipe = small_recipe(place / "data")
    recipe = replace(
        recipe,
        model=ModelConfig(name="bfan", joint_width=8, word_width=5, caption_width=6),
        round_one=replace(recipe.round_one, batch_size=4),
        round_two=replace(recipe.round_two, batch_size=4),
    )
    save_recipe(recipe, root / "recipe.toml")
    shutil.move(root, place)
    run = place / "run"
    for words in (
        ("run", place / "recipe.toml", "--out", run),
        ("evaluate", run, "--split", "dev"),
        ("mine", run / "round-one", "--out", place / "lists.safetensors"),
        ("index", run, "--round", "one"),
        ("index", run, "--round", "two", "--out", place / "index"),
    ):
        done = aoq(*words)
        assert done.returncode == 0, done.stderr
    in_round_two = ("aoq.training.step", "step_loss", 22)
    die(in_round_two, "run", place / "recipe.toml", "--out", place / "half")
    shutil.move(place, root)
    expected = {name: observe(name, root, place) for name in COMMANDS}
    assert expected == {name: observe(name, root, place) for name in COMMANDS}
    assert not any(REFUSED in found for found in expected.values())
    return root, place, expected


def outputs(place):
    """Commands by the part of the folder that they read."""
    run, out = place / "run", place / "out"
    words = place / "words.txt"
    return {
        "data": [
            ("data", "check", place / "data"),
            ("evaluate", run, "--json"),
            ("run", place / "recipe.toml", "--out", out / "run"),
        ],
        "run": [
            ("runs", run, "--json"),
            ("runs", "compare", run / "round-one", run / "round-two", "--json"),
            ("evaluate", run, "--bootstrap", 20, "--json"),
            ("run", place / "recipe.toml", "--out", run),
            ("mine", run / "round-one", "--out", out / "lists.safetensors"),
            ("mine", "inspect", run / "candidates.safetensors"),
            ("index", run, "--out", out / "index"),
            ("encode", run, "--texts", words, "--out", out / "texts.safetensors"),
            ("search", run, "red ball", "--round", "one", "--json"),
        ],
        "half": [
            ("runs", place / "half", "--json"),
            ("run", place / "recipe.toml", "--out", place / "half"),
        ],
        "index": [
            ("search", run, "red ball", "--round", "two", "--index", place / "index", "--json"),
            (
                *("search", run, "--image", place / "photos" / "test-0.png"),
                *("--round", "two", "--index", place / "index", "--json"),
            ),
        ],
        "lists.safetensors": [
            ("mine", "inspect", place / "lists.safetensors", "--data", place / "data"),
            ("mine", "export", place / "lists.safetensors", "--data", place / "data", "--out", out),
        ],
    }


COMMANDS = tuple(outputs(Path()))
WRITTEN = ("model.safetensors", "lists.safetensors", "candidates.safetensors", "texts.safetensors")


def observe(name, intact, place, damage=None):
    """What the commands of a part print and write: a list of results, or the word REFUSED."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(intact, place, copy_function=shutil.copy)
    (place / "words.txt").write_text("red ball\ntwo cups\n", encoding="utf-8")
    if damage is not None:
        damage(place)
    return [observe_command(words, place) for words in outputs(place)[name]]


def observe_command(words, place):
    """What a command prints and writes, or how it ends."""
    before = hashes(place)
    try:
        done = aoq(*words)
    except Exception as error:
        return f"traceback of {' '.join(map(str, words))}: {error!r}"
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        is_sentence = done.returncode == 2 and errors and "Traceback" not in done.stderr
        return REFUSED if is_sentence else f"{words}: {done.returncode}, {done.stderr}"
    after = hashes(place)
    written = {name: found for name, found in after.items() if before.get(name) != found}
    return stable(done.stdout), written


def hashes(place):
    """Hashes of the files that commands write, apart from logs with the time in them."""
    files = [file for name in ("out", "half") for file in (place / name).rglob("*")]
    return {str(file): hash_of(file) for file in files if file.name in WRITTEN}


def hash_of(file):
    """Hash a file; of vectors, whose metadata are in any order, the tensors."""
    if file.name != "texts.safetensors":
        return hash_file(file)
    return hash_parts(*(tensor.tobytes() for _, tensor in sorted(load_file(file).items())))


def stable(output):
    """An output without what differs from time to time."""
    try:
        return without_times(json.loads(output))
    except ValueError:
        return VOLATILE.sub("", output)


def without_times(value):
    if isinstance(value, dict):
        return {
            key: without_times(part)
            for key, part in value.items()
            if not VOLATILE_KEYS & {*key.split("_")}
        }
    return [without_times(part) for part in value] if isinstance(value, list) else value


def damage_file(file, dice, told, folder):
    """Change a byte, a bit or a run of bytes of a file, or cut it, and tell what was done."""
    path = folder / file
    content = bytearray(path.read_bytes())
    at = dice.randrange(len(content))
    kind = dice.choice(["byte", "bit", "zeros", "cut"])
    match kind:
        case "byte":
            content[at] = (content[at] + dice.randrange(1, 256)) % 256
        case "bit":
            content[at] ^= 1 << dice.randrange(8)
        case "zeros":
            end = min(len(content), at + dice.randrange(1, 600))
            content[at:end] = bytes(end - at)
        case "cut":
            del content[at:]
    path.write_bytes(content)
    told.append(f"{kind} at {at:,} of {file}")


@pytest.mark.parametrize("part", range(PARTS))
def test_no_damage_changes_a_result_or_ends_in_a_traceback(intact, part):
    root, place, expected = intact
    files = [
        file.relative_to(root)
        for name in COMMANDS
        for file in sorted([root / name, *(root / name).rglob("*")])
        if file.is_file() and not any(each in file.name for each in NEVER_READ)
    ]
    outcomes, wrong = Counter(), []
    for case in range(part, CASES, PARTS):
        dice, file = random.Random(case), files[case % len(files)]
        name, told = file.parts[0], []
        found = observe(name, root, place, partial(damage_file, file, dice, told))
        wrong += [
            (*told, before, after)
            for before, after in zip(expected[name], found, strict=True)
            if after not in (REFUSED, before)
        ]
        outcomes[REFUSED if REFUSED in found else "same result"] += 1
    print(f"{dict(outcomes)} of {len(files)} files, {len(wrong)} wrong")  # shown with -rP
    assert not wrong, wrong[0]
    assert sum(outcomes.values()) == CASES // PARTS
