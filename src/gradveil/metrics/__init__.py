"""Metrics: compare guesses with the truth, say what chance would give, and decide.

A metric is one file; the file's name is its name everywhere. What is no plain comparison of two images lies beside
them: order and labels, identification among decoys, null guesses, the verdict, the privacy-accuracy trade-off.
"""

from gradveil.metrics._alignment import align, aligned_label_accuracy, arrange, label_accuracy
from gradveil.metrics._base import Metric, clean, metrics
from gradveil.metrics._identification import (
    VIEWS,
    View,
    blurred,
    correlation,
    draw_decoys,
    features,
    identify,
    identify_all,
    pixels,
)
from gradveil.metrics._membership import Tracing, membership_by_classifier, membership_by_label, trace
from gradveil.metrics._nulls import null_guesses, other_of_class
from gradveil.metrics._statistics import Summary, bootstrap_interval, reach_of_chance, summary
from gradveil.metrics._tradeoff import Point, Resamples, cap, cap_interval, ppc, ppc_position, resample_curve
from gradveil.metrics._verdict import CONSTANT_NULLS, Comparison, Identification, Verdict, WorstCase, judge, worst_case
from gradveil.metrics.lpips import LPIPS
from gradveil.metrics.mse import MSE
from gradveil.metrics.psnr import PSNR
from gradveil.metrics.registered_psnr import RegisteredPSNR
from gradveil.metrics.rmse import RMSE
from gradveil.metrics.ssim import SSIM

__all__ = [
    "CONSTANT_NULLS",
    "LPIPS",
    "MSE",
    "PSNR",
    "RMSE",
    "SSIM",
    "VIEWS",
    "Comparison",
    "Identification",
    "Metric",
    "Point",
    "RegisteredPSNR",
    "Resamples",
    "Summary",
    "Tracing",
    "Verdict",
    "View",
    "WorstCase",
    "align",
    "aligned_label_accuracy",
    "arrange",
    "blurred",
    "bootstrap_interval",
    "cap",
    "cap_interval",
    "clean",
    "correlation",
    "draw_decoys",
    "features",
    "identify",
    "identify_all",
    "judge",
    "label_accuracy",
    "membership_by_classifier",
    "membership_by_label",
    "metrics",
    "null_guesses",
    "other_of_class",
    "pixels",
    "ppc",
    "ppc_position",
    "reach_of_chance",
    "resample_curve",
    "summary",
    "trace",
    "worst_case",
]
