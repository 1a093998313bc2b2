"""The tables and figures of the papers, run again: `experiments/` holds one folder for each."""

from gradveil.reproducing._kinds import Means
from gradveil.reproducing.artefacts import Artefact, Expected, catalogue, find_artefact, find_experiments
from gradveil.reproducing.keeping import keep, take_kept
from gradveil.reproducing.plans import SIZES, Plan, Size, read_plan
from gradveil.reproducing.running import Line, audits_behind, compare, reproduce, to_result

__all__ = [
    "SIZES",
    "Artefact",
    "Expected",
    "Line",
    "Means",
    "Plan",
    "Size",
    "audits_behind",
    "catalogue",
    "compare",
    "find_artefact",
    "find_experiments",
    "keep",
    "read_plan",
    "reproduce",
    "take_kept",
    "to_result",
]
