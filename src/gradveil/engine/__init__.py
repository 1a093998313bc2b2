"""Fast, general computation for many victims at once."""

from gradveil.engine._memory import keep_freed_memory
from gradveil.engine.chunks import in_chunks
from gradveil.engine.evaluation import Evaluation
from gradveil.engine.factors import Factored, Factors, formed, row_squares_and_products, square_and_product
from gradveil.engine.gradients import (
    GradientFunction,
    Trial,
    gradient_function,
    stacked_gradients,
    trainable,
)
from gradveil.engine.lbfgs import LBFGS
from gradveil.engine.looped_fallback import over_victims, patient_function, remarks_on, without_dropout
from gradveil.engine.matching import Matching, matching
from gradveil.engine.minimize import Minimum, Variable, minimize
from gradveil.engine.normalization import Standardize, find_normalization, normalized
from gradveil.engine.optimizers import SGD, Adam, Optimizer, spread
from gradveil.engine.runtime import Precision, Progress, Runtime, Store

__all__ = [
    "LBFGS",
    "SGD",
    "Adam",
    "Evaluation",
    "Factored",
    "Factors",
    "GradientFunction",
    "Matching",
    "Minimum",
    "Optimizer",
    "Precision",
    "Progress",
    "Runtime",
    "Standardize",
    "Store",
    "Trial",
    "Variable",
    "find_normalization",
    "formed",
    "gradient_function",
    "in_chunks",
    "keep_freed_memory",
    "matching",
    "minimize",
    "normalized",
    "over_victims",
    "patient_function",
    "remarks_on",
    "row_squares_and_products",
    "spread",
    "square_and_product",
    "stacked_gradients",
    "trainable",
    "without_dropout",
]
