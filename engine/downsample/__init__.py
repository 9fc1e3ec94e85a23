"""Down-sampling of a group's rollouts. A variant is one small file here plus one line in ``DOWNSAMPLERS``.

The names are the ``kind`` of a recipe's ``[downsampling]`` table; its other fields are the class's arguments.
"""

from collections.abc import Callable, Mapping
from typing import Final

from engine.downsample.base import Candidate, Decision, Downsampler, Selection, keep_count
from engine.downsample.keep_all import KeepAll
from engine.downsample.roc import Roc
from engine.downsample.uniform import Uniform

DOWNSAMPLERS: Final[Mapping[str, Callable[..., Downsampler]]] = {
    "roc": Roc,
    "uniform": Uniform,
    "keep_all": KeepAll,
}

__all__ = [
    "DOWNSAMPLERS",
    "Candidate",
    "Decision",
    "Downsampler",
    "KeepAll",
    "Roc",
    "Selection",
    "Uniform",
    "keep_count",
]
