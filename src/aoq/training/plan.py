"""What a recipe will cost, before anything starts.

A few real steps of each round are timed on the real data with the real model; nothing is written.
"""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import dataclass
from statistics import median

import torch

from aoq.config import Recipe, RoundConfig
from aoq.mining.candidates import CandidateLists, Provenance
from aoq.mining.offline import mine
from aoq.models import build_model, count_parameters
from aoq.models.vsrn import VSRN
from aoq.randomness import seed_torch
from aoq.sampling import OfflineSampler
from aoq.scoring.blocks import encode_dataset
from aoq.training.step import make_batch, step_loss
from aoq.training.two_rounds import TrainingData, open_training_data
