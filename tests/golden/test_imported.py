"""Official files of the published programs, imported, give the published scores."""

from __future__ import annotations

import pickle
from argparse import Namespace
from collections import OrderedDict

import numpy as np
import pytest
import torch

from aoq.data.collate import Collator
from aoq.data.splits import open_dataset
from aoq.data.vocabulary import SPECIAL_WORDS, Vocabulary
from aoq.published.importer import PublishedFiles, import_run
from aoq.published.pickles import PARTS
from aoq.runs.checkpoint import load_run
from aoq.runs.judge import evaluate_run
from aoq.runs.mine import mine_run
from aoq.types import Encoding
from tests.golden.conftest import close

T2I = {"lambda_softmax": 9.0, "lambda_lse": 6.0}
I2T = {"lambda_softmax": 4.0, "lambda_lse": 5.0}
CLIPPED = "clipped_l2norm"
SCAN = [
    *(
        (f"scan_{kind}", way, CLIPPED, how)
        for kind in ("unigru", "weightnorm", "bigru")
        for way in ("t2i", "i2t")
        for how in ("LogSumExp", "Mean")
    ),
    *(
        ("scan_bigru", way, norm, "Max")
        for way in ("t2i", "i2t")
        for norm in ("softmax", "no_norm")
    ),
]


def official_files(folder, arrays, options):
    """A checkpoint, a vocabulary and a precomp folder as the program and its papers publish them.

    Five captions an image is what the golden arrays hold, in the order of the images or not: who
    belongs to whom does not matter to scores.
    """
    folder.mkdir()
    state = arrays.below("sd.")
    model = [
        OrderedDict(
            (name.removeprefix(f"{part}."), value)
            for name, value in state.items()
            if name.startswith(f"{part}.")
        )
        for part in PARTS
        if any(name.startswith(f"{part}.") for name in state)
    ]
    checkpoint = {
        "epoch": 9,
        "model": model,
        "best_rsum": np.float64(400.0),
        "opt": Namespace(**options),
        "Eiters": 1,
    }
    is_vsrn = len(model) == 3
    torch.save(checkpoint, folder / "a.pth.tar", _use_new_zipfile_serialization=not is_vsrn)
    n_words = len(state["txt_enc.embed.weight"])
    words = (*SPECIAL_WORDS, *(f"w{number}" for number in range(len(SPECIAL_WORDS), n_words)))
    vocabulary = folder / ("vocab.pkl" if is_vsrn else "vocab.json")
    if is_vsrn:
        vocabulary.write_bytes(pickle.dumps({"word2idx": Vocabulary(words).ids}, 2))
    else:
        Vocabulary(words).save(vocabulary)
    tokens, lengths = arrays.numpy("in.captions"), arrays.numpy("in.lengths")
    assert (tokens[:, 0] == 1).all()
    captions = [
        " ".join(words[token] for token in row[1 : length - 1])
        for row, length in zip(tokens, lengths, strict=True)
    ]
    data = folder / "golden_precomp"
    data.mkdir()
    for split in ("train", "test"):
        np.save(data / f"{split}_ims.npy", arrays.numpy("in.images"))
        (data / f"{split}_caps.txt").write_text("\n".join(captions) + "\n")
    return PublishedFiles(checkpoint=folder / "a.pth.tar", vocabulary=vocabulary), data


def imported_scores(tmp_path, arrays, options):
    """The scores of the imported run on the imported captions, from files to matrix."""
    files, data = official_files(tmp_path / "files", arrays, options)
    run = import_run(tmp_path / "run", files, data=data)
    trained = load_run(run.path)
    collator = Collator(open_dataset(data, "test"), trained.tokenizer)
    assert evaluate_run(run.path).rsum >= 0
    assert mine_run(run.path, run.candidates).i2t.shape == (6, 25)
    model, dataset = trained.model, collator.dataset
    with torch.inference_mode():
        images = model.encode_images(collator.regions(np.arange(len(dataset))))
        texts = model.encode_texts(collator.texts(np.arange(dataset.n_texts)))
        return model.score_matrix(images, texts), model.score_matrix(double(images), double(texts))


def double(encoding):
    return Encoding(encoding.vectors.double(), encoding.mask)


@pytest.mark.parametrize(("name", "way", "norm", "how"), SCAN)
def test_an_imported_scan_scores_as_published(golden, tmp_path, name, way, norm, how):
    arrays = golden(name)
    options = {"cross_attn": way, "raw_feature_norm": norm, "agg_func": how}
    scores, _ = imported_scores(tmp_path, arrays, options | (T2I if way == "t2i" else I2T))
    close(scores, arrays[f"score.{way}.{norm}.{how}"])


@pytest.mark.parametrize("focal", ["equal", "prob"])
def test_an_imported_bfan_scores_as_published(golden, tmp_path, focal):
    """Its focal step is discontinuous: single pairs may differ in single precision."""
    arrays = golden(f"bfan_{focal}")
    options = {"focal_type": focal, "lambda_softmax": 20.0}
    single, exact = imported_scores(tmp_path, arrays, options)
    close(exact, arrays["score"])
    assert ((single - arrays["score"]).abs() < 1e-5).double().mean() >= 0.999


@pytest.mark.parametrize("variant", ["coco", "f30k"])
def test_an_imported_vsrn_scores_as_published(golden, tmp_path, variant):
    arrays = golden(f"vsrn_{variant}")
    options = {"max_len": int(arrays["caption.max_len"]), "input_dropout_p": 0.0}
    scores, _ = imported_scores(tmp_path, arrays, options)
    close(scores, arrays["score"])
    recipe = load_run(tmp_path / "run").recipe
    assert recipe.model.variant == variant


@pytest.mark.parametrize("variant", ["coco", "f30k"])
def test_an_imported_caption_model_has_the_published_loss(golden, tmp_path, variant):
    arrays = golden(f"vsrn_{variant}")
    options = {"max_len": int(arrays["caption.max_len"]), "input_dropout_p": 0.0}
    files, data = official_files(tmp_path / "files", arrays, options)
    captioner = load_run(import_run(tmp_path / "run", files, data=data).path).model.captioner
    labels, expected = arrays["caption.labels"], arrays["caption.logprobs"]
    with torch.inference_mode():
        states = captioner.decode(arrays["out.gcn_img_emb"], labels[:, : expected.shape[1]])
        close(captioner.output(states).log_softmax(dim=-1), expected)
