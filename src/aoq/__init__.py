"""Image-text matching that gets details right.

Round one trains with the hardest negatives of each batch; the model then ranks the whole training
set and keeps, for every image and text, its hardest wrong partners; round two trains from scratch
with those. The names below are the library's front door; they are imported when first used, so
that `import aoq` stays fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from aoq.config import LossConfig as LossConfig
    from aoq.config import ModelConfig as ModelConfig
    from aoq.config import Recipe as Recipe
    from aoq.data.collate import Collator as Collator
    from aoq.data.dataset import PairDataset as PairDataset
    from aoq.data.opening import open_dataset as open_dataset
    from aoq.errors import UserError as UserError
    from aoq.evaluation.protocols import evaluate as evaluate
    from aoq.losses import BatchScores as BatchScores
    from aoq.losses import OfflineScores as OfflineScores
    from aoq.losses import compute_loss as compute_loss
    from aoq.models import build_model as build_model
    from aoq.recipes import load_recipe as load_recipe
    from aoq.retrieval.matcher import Matcher as Matcher
    from aoq.scoring.encoded import encode_dataset as encode_dataset
    from aoq.scoring.ensemble import Ensemble as Ensemble
    from aoq.scoring.inner_product import InnerProduct as InnerProduct
    from aoq.training.checkpoint import load_own_model as load_own_model
    from aoq.training.checkpoint import load_run as load_run
    from aoq.training.inputs import TrainingData as TrainingData
    from aoq.training.inputs import open_training_data as open_training_data
    from aoq.training.trained import evaluate_run as evaluate_run
    from aoq.training.trained import evaluate_runs as evaluate_runs
    from aoq.training.trained import mine_run as mine_run
    from aoq.training.two_rounds import run_recipe as run_recipe
    from aoq.types import Encoding as Encoding
    from aoq.types import Positives as Positives

_HOMES = {
    "BatchScores": "aoq.losses",
    "Collator": "aoq.data.collate",
    "Encoding": "aoq.types",
    "Ensemble": "aoq.scoring.ensemble",
    "InnerProduct": "aoq.scoring.inner_product",
    "LossConfig": "aoq.config",
    "Matcher": "aoq.retrieval.matcher",
    "ModelConfig": "aoq.config",
    "OfflineScores": "aoq.losses",
    "PairDataset": "aoq.data.dataset",
    "Positives": "aoq.types",
    "Recipe": "aoq.config",
    "TrainingData": "aoq.training.inputs",
    "UserError": "aoq.errors",
    "build_model": "aoq.models",
    "compute_loss": "aoq.losses",
    "encode_dataset": "aoq.scoring.encoded",
    "evaluate": "aoq.evaluation.protocols",
    "evaluate_run": "aoq.training.trained",
    "evaluate_runs": "aoq.training.trained",
    "load_own_model": "aoq.training.checkpoint",
    "load_recipe": "aoq.recipes",
    "load_run": "aoq.training.checkpoint",
    "mine_run": "aoq.training.trained",
    "open_dataset": "aoq.data.opening",
    "open_training_data": "aoq.training.inputs",
    "run_recipe": "aoq.training.two_rounds",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'aoq' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
