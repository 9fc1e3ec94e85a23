"""Down-sampling of a group's rollouts: the rules (``registry``), what they decided, and the record of it.

Standard library only, so that the web platform explains and recomputes a selection without torch.
"""

from engine.downsample.balanced import Balanced
from engine.downsample.base import Candidate, Decision, Downsampler, Selection, keep_count
from engine.downsample.keep_all import KeepAll
from engine.downsample.record import GroupRecord, RecordError, deviations, recompute, what_if
from engine.downsample.registry import DOWNSAMPLERS, make_downsampler
from engine.downsample.roc import Roc
from engine.downsample.uniform import Uniform

__all__ = [
    "DOWNSAMPLERS",
    "Balanced",
    "Candidate",
    "Decision",
    "Downsampler",
    "GroupRecord",
    "KeepAll",
    "RecordError",
    "Roc",
    "Selection",
    "Uniform",
    "deviations",
    "keep_count",
    "make_downsampler",
    "recompute",
    "what_if",
]
