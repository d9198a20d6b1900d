"""Files as the published programs write them."""

from __future__ import annotations

import pickle
from argparse import Namespace
from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

FEATURES, JOINT, WORD, WORDS, HIDDEN = 6, 5, 4, 15, 3


SCAN_OPTIONS = {
    "cross_attn": "i2t",
    "raw_feature_norm": "softmax",
    "agg_func": "Mean",
    "lambda_lse": 5.0,
    "lambda_softmax": 4.0,
    "bi_gru": True,
    "precomp_enc_type": "basic",
    "embed_size": JOINT,
    "margin": 0.25,
    "num_epochs": 15,
    "batch_size": 64,
    "learning_rate": 0.0005,
    "lr_update": 7,
    "grad_clip": 2.0,
    "max_violation": True,
    "no_imgnorm": False,
    "no_txtnorm": False,
}


BFAN_OPTIONS = {"focal_type": "equal", "lambda_softmax": 20.0, "max_violation": True}


VSRN_OPTIONS = {"max_len": 50, "input_dropout_p": 0.1, "measure": "cosine", "use_abs": False}


VSE_OPTIONS = {"measure": "cosine", "use_abs": False, "cnn_type": "vgg19"}


def below(prefix, module):
    return {f"{prefix}.{name}": value for name, value in module.state_dict().items()}


def text_state(*, words=WORDS, both_ways=False):
    gru = nn.GRU(WORD, JOINT, bidirectional=both_ways)
    return OrderedDict(below("embed", nn.Embedding(words, WORD)) | below("rnn", gru))


def graph_state(number):
    layer = f"Rs_GCN_{number}"
    state = {}
    for name in ("g", "theta", "phi", "W.0"):
        state |= below(f"{layer}.{name}", nn.Conv1d(JOINT, JOINT, 1))
    return state | below(f"{layer}.W.1", nn.BatchNorm1d(JOINT))


def vsrn_image_state(*, f30k=False):
    state = below("fc", nn.Linear(FEATURES, JOINT)) | below("img_rnn", nn.GRU(JOINT, JOINT))
    for number in range(1, 5):
        state |= graph_state(number)
    return OrderedDict(state | (below("bn", nn.BatchNorm1d(JOINT)) if f30k else {}))


def caption_state(*, words=WORDS):
    return OrderedDict(
        below("encoder.vid2hid", nn.Linear(JOINT, HIDDEN))
        | below("encoder.rnn", nn.GRU(HIDDEN, HIDDEN))
        | below("decoder.embedding", nn.Embedding(words, WORD))
        | below("decoder.attention.linear1", nn.Linear(2 * HIDDEN, HIDDEN))
        | below("decoder.attention.linear2", nn.Linear(HIDDEN, 1, bias=False))
        | below("decoder.rnn", nn.GRU(WORD + HIDDEN, HIDDEN))
        | below("decoder.out", nn.Linear(HIDDEN, words))
    )


def content(kind="scan", *, words=WORDS, options=None):
    """A checkpoint as the published program saves it."""
    torch.manual_seed(0)
    image = OrderedDict(below("fc", nn.Linear(FEATURES, JOINT)))
    if kind == "scan":
        model, told = [image, text_state(words=words, both_ways=True)], SCAN_OPTIONS
    elif kind == "bfan":
        model, told = [image, text_state(words=words, both_ways=True)], BFAN_OPTIONS
    elif kind == "vse":
        model, told = [image, text_state(words=words)], VSE_OPTIONS
    else:
        model = [vsrn_image_state(f30k=kind == "vsrn_f30k"), text_state(words=words)]
        model += [] if kind == "vsrn_original" else [caption_state(words=words)]
        told = VSRN_OPTIONS
    return {
        "epoch": 12,
        "model": model,
        "best_rsum": np.float64(431.5),
        "opt": Namespace(**(told if options is None else options)),
        "Eiters": 5000,
    }


class Python2Pickler(pickle._Pickler):
    """Writes text and bytes as Python 2 wrote its strings."""

    dispatch = dict(pickle._Pickler.dispatch)  # noqa: RUF012

    def save_string(self, value):
        data = value.encode() if isinstance(value, str) else value
        self.write(pickle.SHORT_BINSTRING + bytes([len(data)]) + data)
        self.memoize(value)

    dispatch[str] = save_string
    dispatch[bytes] = save_string


PYTHON2 = SimpleNamespace(
    __name__="pickle",
    Pickler=Python2Pickler,
    dump=lambda value, file, protocol: Python2Pickler(file, protocol).dump(value),
)


FORMATS = {
    "zip": {},
    "legacy": {"_use_new_zipfile_serialization": False},
    "python 2": {"_use_new_zipfile_serialization": False, "pickle_module": PYTHON2},
}


def write(path, value, *, form="legacy"):
    torch.save(value, path, **FORMATS[form])
    return path
