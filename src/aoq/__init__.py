"""Image-text matching that gets details right.

Round one trains with the hardest negatives of each batch; the model then ranks the whole training
set and keeps, for every image and text, its hardest wrong partners; round two trains from scratch
with those. The names below are the public interface of the library; each is imported when it is
first used, so that `import aoq` stays fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from aoq.adapters.matching import MatchingLoss as MatchingLoss
    from aoq.adapters.pairs import OfflineDataset as OfflineDataset
    from aoq.adapters.rows import hard_negative_rows as hard_negative_rows
    from aoq.adapters.rows import mine_hard_negatives as mine_hard_negatives
    from aoq.config import LossConfig as LossConfig
    from aoq.config import MiningConfig as MiningConfig
    from aoq.config import ModelConfig as ModelConfig
    from aoq.config import Recipe as Recipe
    from aoq.config import RoundConfig as RoundConfig
    from aoq.config import SamplingConfig as SamplingConfig
    from aoq.data.build import build_scenes as build_scenes
    from aoq.data.collate import Collator as Collator
    from aoq.data.dataset import PairDataset as PairDataset
    from aoq.data.sources.records import Record as Record
    from aoq.data.sources.records import read_records as read_records
    from aoq.data.splits import open_dataset as open_dataset
    from aoq.data.vocabulary import Vocabulary as Vocabulary
    from aoq.distributed import default_device as default_device
    from aoq.distributed import join_processes as join_processes
    from aoq.errors import UserError as UserError
    from aoq.evaluation.metrics import Metrics as Metrics
    from aoq.evaluation.protocols import evaluate as evaluate
    from aoq.features.pictures import load_picture as load_picture
    from aoq.losses import BatchScores as BatchScores
    from aoq.losses import OfflineScores as OfflineScores
    from aoq.losses import compute_loss as compute_loss
    from aoq.mining.candidates import CandidateLists as CandidateLists
    from aoq.mining.candidates import Provenance as Provenance
    from aoq.mining.mine import mine as mine
    from aoq.models import build_model as build_model
    from aoq.recipes import load_recipe as load_recipe
    from aoq.retrieval.matcher import Matcher as Matcher
    from aoq.retrieval.queries import Query as Query
    from aoq.runs.checkpoint import load_own_model as load_own_model
    from aoq.runs.checkpoint import load_run as load_run
    from aoq.runs.export import export_run as export_run
    from aoq.runs.hub import pull_run as pull_run
    from aoq.runs.hub import push_run as push_run
    from aoq.runs.judge import evaluate_run as evaluate_run
    from aoq.runs.judge import evaluate_runs as evaluate_runs
    from aoq.runs.mine import mine_run as mine_run
    from aoq.runs.query_reader import QueryReader as QueryReader
    from aoq.sampling import OfflineSampler as OfflineSampler
    from aoq.scoring.encoded import EncodedDataset as EncodedDataset
    from aoq.scoring.encoded import encode_dataset as encode_dataset
    from aoq.scoring.ensemble import Ensemble as Ensemble
    from aoq.scoring.inner_product import InnerProduct as InnerProduct
    from aoq.scoring.protocol import TrainableModel as TrainableModel
    from aoq.training.callbacks import Callback as Callback
    from aoq.training.inputs import TrainingData as TrainingData
    from aoq.training.inputs import open_training_data as open_training_data
    from aoq.training.two_rounds import run_recipe as run_recipe
    from aoq.types import Encoding as Encoding
    from aoq.types import Positives as Positives
    from aoq.types import Texts as Texts

_HOMES = {
    "BatchScores": "aoq.losses",
    "Callback": "aoq.training.callbacks",
    "CandidateLists": "aoq.mining.candidates",
    "Collator": "aoq.data.collate",
    "EncodedDataset": "aoq.scoring.encoded",
    "Encoding": "aoq.types",
    "Ensemble": "aoq.scoring.ensemble",
    "InnerProduct": "aoq.scoring.inner_product",
    "LossConfig": "aoq.config",
    "Matcher": "aoq.retrieval.matcher",
    "MatchingLoss": "aoq.adapters.matching",
    "Metrics": "aoq.evaluation.metrics",
    "MiningConfig": "aoq.config",
    "ModelConfig": "aoq.config",
    "OfflineDataset": "aoq.adapters.pairs",
    "OfflineSampler": "aoq.sampling",
    "OfflineScores": "aoq.losses",
    "PairDataset": "aoq.data.dataset",
    "Positives": "aoq.types",
    "Provenance": "aoq.mining.candidates",
    "Query": "aoq.retrieval.queries",
    "QueryReader": "aoq.runs.query_reader",
    "Recipe": "aoq.config",
    "Record": "aoq.data.sources.records",
    "RoundConfig": "aoq.config",
    "SamplingConfig": "aoq.config",
    "Texts": "aoq.types",
    "TrainableModel": "aoq.scoring.protocol",
    "TrainingData": "aoq.training.inputs",
    "UserError": "aoq.errors",
    "Vocabulary": "aoq.data.vocabulary",
    "build_model": "aoq.models",
    "build_scenes": "aoq.data.build",
    "compute_loss": "aoq.losses",
    "default_device": "aoq.distributed",
    "encode_dataset": "aoq.scoring.encoded",
    "evaluate": "aoq.evaluation.protocols",
    "evaluate_run": "aoq.runs.judge",
    "evaluate_runs": "aoq.runs.judge",
    "export_run": "aoq.runs.export",
    "hard_negative_rows": "aoq.adapters.rows",
    "join_processes": "aoq.distributed",
    "load_own_model": "aoq.runs.checkpoint",
    "load_picture": "aoq.features.pictures",
    "load_recipe": "aoq.recipes",
    "load_run": "aoq.runs.checkpoint",
    "mine": "aoq.mining.mine",
    "mine_hard_negatives": "aoq.adapters.rows",
    "mine_run": "aoq.runs.mine",
    "open_dataset": "aoq.data.splits",
    "open_training_data": "aoq.training.inputs",
    "pull_run": "aoq.runs.hub",
    "push_run": "aoq.runs.hub",
    "read_records": "aoq.data.sources.records",
    "run_recipe": "aoq.training.two_rounds",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'aoq' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return ["__doc__", "__file__", "__name__", "__version__", *__all__]
