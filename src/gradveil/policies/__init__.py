"""The search for transformation policies that hide images and leave enough to learn."""

from gradveil.policies._networks import SEMI_TRAINING
from gradveil.policies.result import ScoredPolicy, SearchRecord, build_hybrid, ranked, read
from gradveil.policies.scores import THRESHOLDS, Score, accuracy_score, privacy_score
from gradveil.policies.search import search_policies
from gradveil.policies.settings import SearchSettings
from gradveil.policies.sheet import contact_sheet

__all__ = [
    "SEMI_TRAINING",
    "THRESHOLDS",
    "Score",
    "ScoredPolicy",
    "SearchRecord",
    "SearchSettings",
    "accuracy_score",
    "build_hybrid",
    "contact_sheet",
    "privacy_score",
    "ranked",
    "read",
    "search_policies",
]
