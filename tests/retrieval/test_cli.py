"""`aoq index`, `search`, `score` and `encode` as people use them."""

from __future__ import annotations

import csv
import json
import shlex
import shutil

import numpy as np
import pytest
from safetensors import safe_open

from aoq.cli import app
from aoq.errors import UserError
from aoq.retrieval.encoder import QueryEncoder
from aoq.retrieval.index import Index
from aoq.retrieval.queries import Query
from tests.commands import aoq_process
from tests.retrieval.conftest import draw_photo

pytestmark = pytest.mark.usefixtures("matchers")  # it makes the indexes


def run_here(*arguments):
    """The command in this process: quicker than one of its own."""
    app(
        [str(argument) for argument in arguments], exit_on_error=False, result_action="return_value"
    )


@pytest.fixture
def run(world, tmp_path):
    ignored = shutil.ignore_patterns("index", "encodings")
    return shutil.copytree(world.runs["vse"], tmp_path / "run", ignore=ignored)


def test_index_then_search_from_the_shell(run, world):
    made = aoq_process("index", run, "--splits", "dev", "test")
    assert made.returncode == 0, made.stderr
    assert "indexed 10 images and" in made.stderr
    assert "of dev: " in made.stderr
    assert "% by words of captions, " in made.stderr
    assert f"next: aoq search {run}" in made.stderr
    found = aoq_process("search", run, "a red ball", "--top", 3, "--json")
    assert found.returncode == 0, found.stderr
    answer = json.loads(found.stdout)
    assert answer["query"] == {"texts": ["a red ball"], "like": [], "without": [], "image": None}
    assert answer["exact"] is True
    assert answer["ranked_by"] == "merged"
    assert answer["calibrated_on"]["split"] == "dev"
    assert answer["unknown_words"] == ["a"]
    assert "treats them all alike: a" in found.stderr
    assert [hit["rank"] for hit in answer["hits"]] == [1, 2, 3]
    for hit in answer["hits"]:
        assert hit["picture"] == str(world.photos / hit["id"])


def test_a_search_prints_a_row_a_hit_and_a_picture_finds_texts(
    world, matchers, capsys, monkeypatch
):
    monkeypatch.delenv("COLUMNS", raising=False)  # as in a pipe
    run_here("search", world.runs["vse"], "red ball", "--top", 4)
    lines = capsys.readouterr().out.splitlines()
    best = matchers["vse"].find(Query(texts=("red ball",), top=4)).hits
    assert lines[0].split() == ["rank", "score", "probability", "image", "caption", "picture"]
    for line, hit in zip(lines[2:], best, strict=True):
        share = f"{hit.probability:.1%}"
        for part in (f"{hit.score:.4f}", share, hit.id, str(hit.picture), hit.text):
            assert part in line
    picture = world.photos / "test-1.png"
    run_here("search", world.runs["vse"], "--image", picture, "--top", 4)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["rank", "score", "probability", "text", "caption"]
    best = matchers["vse"].search(picture, top=4).hits
    for line, hit in zip(lines[2:], best, strict=True):
        share = f"{hit.probability:.1%}"
        assert line.rstrip().split(maxsplit=4)[1:] == [f"{hit.score:.4f}", share, hit.id, hit.text]


def asked(capsys, *arguments):
    run_here("search", *arguments, "--json")
    return json.loads(capsys.readouterr().out)


def test_several_things_are_asked_at_once(world, matchers, capsys):
    photo = world.photos / "dev-1.png"
    found = asked(
        capsys,
        *(world.runs["vse"], "red ball", "two cup", "--like", photo, "--without", "green"),
        *("--weights", 1, 0.5, 2, "--where", "not split = test", "--top", 3, "--collapse"),
    )
    query = Query(
        texts=("red ball", "two cup"),
        images=(photo,),
        without=("green",),
        weights=(1, 0.5, 2),
        where="not split = test",
        top=3,
        collapse=True,
    )
    expected = matchers["vse"].find(query)
    assert [hit["number"] for hit in found["hits"]] == [hit.number for hit in expected.hits]
    assert found["query"] == {
        "texts": ["red ball", "two cup"],
        "like": [str(photo)],
        "without": ["green"],
        "image": None,
    }
    assert not any(hit["id"].startswith("test") for hit in found["hits"])


def test_captions_are_searched_beside_photos_alone_or_not_at_all(world, capsys):
    for words, ranked_by in (("auto", "merged"), ("only", "words"), ("off", "model")):
        found = asked(capsys, world.runs["vse"], "red ball", "--words", words)
        assert found["ranked_by"] == ranked_by
        assert (found["hits"][0]["model_score"] is None) == (words == "only")
        assert (found["hits"][0]["words_score"] is None) == (words == "off")


def test_nothing_fits_if_no_hit_reaches_the_bar(world, capsys):
    found = asked(capsys, world.runs["vse"], "red ball", "--min-score", 99)
    assert (found["hits"], found["bar"]) == ([], 99)
    run_here("search", world.runs["vse"], "red ball", "--min-score", 99)
    assert "nothing fits: no hit reaches a score of 99" in capsys.readouterr().err


def test_hits_are_exported_as_a_table_as_json_and_as_links(world, capsys, tmp_path):
    command = (world.runs["vse"], "red ball", "--top", 3)
    found = asked(capsys, *command)["hits"]
    for name in ("hits.csv", "hits.json", "photos"):
        run_here("search", *command, "--export", tmp_path / name)
        with pytest.raises(UserError, match="exists already"):
            run_here("search", *command, "--export", tmp_path / name)
    with (tmp_path / "hits.csv").open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [(row["rank"], row["id"], row["picture"]) for row in rows] == [
        (str(hit["rank"]), hit["id"], hit["picture"]) for hit in found
    ]
    assert json.loads((tmp_path / "hits.json").read_text())["hits"] == found
    links = sorted((tmp_path / "photos").iterdir())
    assert [link.name for link in links] == [f"{hit['rank']}-{hit['id']}" for hit in found]
    assert [str(link.resolve()) for link in links] == [hit["picture"] for hit in found]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["search", "RUN"], "a sentence or a picture"),
        (["search", "RUN", "red", "--image", "x.jpg"], "goes alone; --like finds photos"),
        (["search", "RUN", "red", "--weights", "1", "2"], "2 weights are given for 1 texts"),
        (["search", "RUN", "red", "--where", "split ="], "split"),
        (["search", "RUN", "--like", "x.jpg", "--words", "only"], "give sentences and no photo"),
        (["search", "RUN", "red", "--export", "hits.pdf"], "neither .csv nor .json"),
        (["search", "RUN", "--image", "x.jpg", "--export", "links"], "texts are searched"),
        (["search", "RUN", "zebra"], "knows no word of this text"),
        (["search", "RUN", "red", "--index", "no where"], "aoq index .* --out 'no where'`"),
        (["search", "RUN", "--image", "nowhere.jpg"], "nowhere.jpg"),
        (["score", "RUN", "x.jpg"], "no text is given"),
        (["score", "RUN", "x.jpg", "zebra"], "knows no word"),
        (["index", "RUN", "--without-data"], "name folders with --pictures"),
        (
            ["index", "RUN", "--without-data", "--pictures", "x", "--data", "y"],
            "cannot be combined with --data or --splits",
        ),
        (["index", "RUN", "--proposals", "3", "--force"], "name one with --teacher"),
        (["index", "RUN", "--sample", "3", "--force"], "name one with --teacher"),
        (["index", "RUN", "--proposals", "3"], "has no teacher"),
        (["index", "RUN", "--add", "x", "--force"], "only be combined with --out"),
        (["index", "RUN", "--add", "x", "--sample", "3"], "only be combined with --out"),
        (["index", "RUN", "--add", "x", "--out", "nowhere"], "make one with `aoq index"),
        (["index", "RUN"], "exists already"),
        (["encode", "RUN", "--out", "x.npy"], "give one of the two"),
        (["encode", "RUN", "--texts", "x.txt", "--out", "x.txt"], "neither .npy nor .safetensors"),
        (["encode", "RUN", "--texts", "nowhere.txt", "--out", "x.npy"], "nowhere.txt"),
    ],
)
@pytest.mark.usefixtures("matchers")
def test_what_cannot_be_done_is_refused_with_a_sentence(world, arguments, sentence):
    run = str(world.runs["vse"])
    with pytest.raises(UserError, match=sentence):
        run_here(*[run if argument == "RUN" else argument for argument in arguments])


@pytest.mark.parametrize("name", ["vsrn", "bfan"])
def test_scores_of_a_picture_need_no_index(world, matchers, name, capsys):
    picture = world.photos / "train-3.png"
    texts = ["red ball", "two small zebra cup"]
    expected = matchers[name].score(picture, texts)
    run_here("score", world.runs[name], picture, *texts, "--json")
    shown = json.loads(capsys.readouterr().out)
    assert [row["text"] for row in shown["scores"]] == texts
    assert [row["unknown_words"] for row in shown["scores"]] == [[], ["zebra"]]
    assert [row["score"] for row in shown["scores"]] == pytest.approx(expected, abs=1e-5)
    run_here("score", world.runs[name], picture, *texts)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == [
        f"{score:.4f}" for score in sorted(expected, reverse=True)
    ]


def test_an_index_with_photos_is_made_and_added_to(run, tmp_path, capsys):
    draw_photo(tmp_path / "album" / "one.png", seed=100)
    draw_photo(tmp_path / "later" / "two.png", seed=101)
    run_here("index", run, "--pictures", tmp_path / "album", "--without-data")
    assert "indexed 1 image and 0 texts" in capsys.readouterr().err
    run_here("index", run, "--add", tmp_path / "later")
    assert "added 1 photo of" in capsys.readouterr().err
    run_here("index", run, "--add", tmp_path / "later")
    assert "added 0 photos" in capsys.readouterr().err
    assert [image.id for image in Index.open(run / "index").images] == ["one.png", "two.png"]


def test_a_search_marks_pictures_that_are_gone(run, tmp_path, capsys):
    draw_photo(tmp_path / "album" / "one.png", seed=100)
    draw_photo(tmp_path / "album" / "two.png", seed=101)
    run_here("index", run, "--pictures", tmp_path / "album", "--without-data")
    (tmp_path / "album" / "one.png").unlink()
    capsys.readouterr()
    run_here("search", run, "red ball", "--json")
    hits = json.loads(capsys.readouterr().out)["hits"]
    assert {hit["id"]: hit["picture_gone"] for hit in hits} == {"one.png": True, "two.png": False}
    run_here("search", run, "red ball")
    assert capsys.readouterr().out.count("(gone)") == 1


def test_the_next_step_can_be_typed_whatever_the_folder_is_called(run, capsys):
    spaced = run.rename(run.parent / "my run")
    run_here("index", spaced, "--splits", "dev", "--out", run.parent / "my index")
    told = capsys.readouterr().err.splitlines()[-1]
    caption = Index.open(run.parent / "my index").texts[-1].text  # words that the model knows
    assert shlex.split(told.removeprefix("next: ")) == [
        *("aoq", "search", str(spaced)),
        *("--index", str(run.parent / "my index"), caption),
    ]


def test_a_teacher_s_recall_is_reported_and_without_one_a_model_is_slow(world, tmp_path, capsys):
    bfan, vse = world.runs["bfan"], world.runs["vse"]
    run_here("index", bfan, "--out", tmp_path / "slow", "--splits", "test")
    assert "exact but slow" in capsys.readouterr().err
    run_here("index", bfan, "--teacher", vse, "--proposals", 2, "--out", tmp_path / "quick")
    told = capsys.readouterr().err
    assert "images of a text: 2 proposals give" in told
    assert "texts of an image: 2 proposals give" in told
    assert "(5 queries of test)" in told
    draw_photo(tmp_path / "album" / "one.png", seed=100)
    run_here("index", bfan, "--add", tmp_path / "album", "--out", tmp_path / "quick")
    again = f"aoq index {bfan} --proposals 2 --out {tmp_path / 'quick'}"
    assert f"measured again: {again}" in capsys.readouterr().err
    run_here("index", bfan, "--proposals", 100, "--out", tmp_path / "quick")
    assert "100.0% of the first, 100.0% of the first 5" in capsys.readouterr().err


# Vectors


def write_lines(path, *lines):
    path.write_text("\n".join(lines) + "\n")
    return path


def test_vectors_of_texts_as_an_array_with_their_ids_beside(world, tmp_path):
    lines = write_lines(tmp_path / "texts.txt", "red ball", "two small cups left", "blue tree")
    out = tmp_path / "texts.npy"
    run_here("encode", world.runs["vsrn"], "--texts", lines, "--out", out)
    ids = json.loads((tmp_path / "texts.json").read_text())
    assert ids == ["red ball", "two small cups left", "blue tree"]
    expected = QueryEncoder.load(world.runs["vsrn"]).encode_texts(ids).vectors
    np.testing.assert_allclose(np.load(out), expected, atol=1e-6)


def test_vectors_of_words_are_packed_one_text_after_the_other(world, tmp_path):
    lines = write_lines(tmp_path / "texts.txt", "red ball", "two small cups left")
    out = tmp_path / "texts.safetensors"
    run_here("encode", world.runs["bfan"], "--texts", lines, "--out", out)
    encoder = QueryEncoder.load(world.runs["bfan"])
    with safe_open(out, framework="np") as file:
        vectors, lengths, about = (
            file.get_tensor("vectors"),
            file.get_tensor("lengths"),
            file.metadata(),
        )
    assert lengths.tolist() == [4, 6]
    assert json.loads(about["ids"]) == ["red ball", "two small cups left"]
    assert (about["kind"], about["model"]) == ("texts", encoder.model_hash)
    for text, words in zip(json.loads(about["ids"]), np.split(vectors, [4]), strict=True):
        np.testing.assert_allclose(words, encoder.encode_texts([text]).vectors[0], atol=1e-6)
    with pytest.raises(UserError, match="a vector a word"):
        run_here("encode", world.runs["bfan"], "--texts", lines, "--out", tmp_path / "texts.npy")


@pytest.mark.parametrize("name", ["vse", "bfan"])
@pytest.mark.parametrize("ending", ["npy", "safetensors"])
def test_vectors_of_pictures_are_those_of_the_index(world, matchers, tmp_path, name, ending):
    out = tmp_path / f"pictures.{ending}"
    run_here("encode", world.runs[name], "--pictures", world.photos, "--out", out)
    if ending == "npy":
        vectors, ids = np.load(out), json.loads(out.with_suffix(".json").read_text())
    else:
        with safe_open(out, framework="np") as file:
            vectors, ids = file.get_tensor("vectors"), json.loads(file.metadata()["ids"])
    images = {image.id: image.number for image in matchers[name].index.images}
    assert sorted(ids) == sorted(images)
    stored = matchers[name].index.rows("images")[:].vectors
    np.testing.assert_allclose(vectors, stored[[images[one] for one in ids]], atol=1e-5)


def test_files_are_replaced_only_if_asked_for_and_odd_texts_are_reported(world, tmp_path, capsys):
    lines = write_lines(tmp_path / "texts.txt", "red ball", "zebra")
    out = tmp_path / "texts.npy"
    command = ["encode", world.runs["vse"], "--texts", lines, "--out", out]
    run_here(*command)
    told = capsys.readouterr().err
    assert "unknown words only: 1, first line 2" in told
    assert "treats them all alike: zebra" in told
    with pytest.raises(UserError, match="--force"):
        run_here(*command)
    write_lines(lines, "red", "", "ball", "")
    with pytest.raises(UserError, match="line 2: it has no words"):
        run_here(*command, "--force")
    assert len(np.load(out)) == 2
    lines.write_text("")
    with pytest.raises(UserError, match="is empty"):
        run_here(*command, "--force")


def test_ids_that_were_there_are_not_replaced_either(world, tmp_path):
    lines = write_lines(tmp_path / "texts.txt", "red ball")
    mine = write_lines(tmp_path / "texts.json", '["mine"]')
    command = ["encode", world.runs["vse"], "--texts", lines, "--out", tmp_path / "texts.npy"]
    with pytest.raises(UserError, match=r"texts\.json exists already"):
        run_here(*command)
    assert json.loads(mine.read_text()) == ["mine"]
    assert not (tmp_path / "texts.npy").exists()
    with pytest.raises(UserError, match=r"texts\.json .*not written by aoq"):
        run_here(*command, "--force")
    mine.unlink()
    for force in ((), ("--force",)):
        run_here(*command, *force)
        assert json.loads(mine.read_text()) == ["red ball"]
