"""The search for transformation policies that hide images and leave enough to learn."""

from gradveil.policies._networks import SEMI_TRAINING
from gradveil.policies.baseline import Baseline, random_baseline, random_defenses
from gradveil.policies.definitions import Definitions, Delta, definitions
from gradveil.policies.result import ScoredPolicy, SearchRecord, build_hybrid, ranked, read
from gradveil.policies.scores import THRESHOLDS, Score, accuracy_score, privacy_score
from gradveil.policies.search import search_policies
from gradveil.policies.settings import SearchSettings
from gradveil.policies.sheet import contact_sheet

__all__ = [
    "SEMI_TRAINING",
    "THRESHOLDS",
    "Baseline",
    "Definitions",
    "Delta",
    "Score",
    "ScoredPolicy",
    "SearchRecord",
    "SearchSettings",
    "accuracy_score",
    "build_hybrid",
    "contact_sheet",
    "definitions",
    "privacy_score",
    "random_baseline",
    "random_defenses",
    "ranked",
    "read",
    "search_policies",
]
