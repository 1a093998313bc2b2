"""The 50 operations of the transformation search: exact on bytes, batched, and differentiable."""

from gradveil.transforms._table import OPERATIONS, Operation, canonical_index
from gradveil.transforms._tones import to_bytes
from gradveil.transforms.applying import (
    Variants,
    Views,
    all_variants,
    crop_flip,
    draw_signs,
    draw_variants,
    draw_views,
    smooth_transformation,
    transform_bytes,
    transform_smoothly,
)
from gradveil.transforms.policy import (
    LONGEST,
    NO_POLICY,
    Hybrid,
    Policy,
    Sampling,
    draw_policies,
    parse_policy,
    share_functions,
)

__all__ = [
    "LONGEST",
    "NO_POLICY",
    "OPERATIONS",
    "Hybrid",
    "Operation",
    "Policy",
    "Sampling",
    "Variants",
    "Views",
    "all_variants",
    "canonical_index",
    "crop_flip",
    "draw_policies",
    "draw_signs",
    "draw_variants",
    "draw_views",
    "parse_policy",
    "share_functions",
    "smooth_transformation",
    "to_bytes",
    "transform_bytes",
    "transform_smoothly",
]
