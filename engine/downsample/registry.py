"""Every rule by its name, and how one is made from a name and settings that somebody wrote.

A variant is one small file plus one line in ``DOWNSAMPLERS``. The names are the ``kind`` of a recipe's
``[downsampling]`` table; its other fields are the class's arguments, each with a default that gives its type.
Leaves out the recipe's own checks (``engine.contract.stages``).
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Final

from engine.downsample.balanced import Balanced
from engine.downsample.base import Downsampler
from engine.downsample.keep_all import KeepAll
from engine.downsample.reading import read_value, shown
from engine.downsample.roc import Roc
from engine.downsample.uniform import Uniform

Option = int | float | str

DOWNSAMPLERS: Final[Mapping[str, Callable[..., Downsampler]]] = {
    "roc": Roc,
    "balanced": Balanced,
    "uniform": Uniform,
    "keep_all": KeepAll,
}


def check_options(kind: str, given: Mapping[str, object]) -> dict[str, Option]:
    """All settings of a rule, those not given at their defaults. Raises ``ValueError`` that names what is wrong."""
    if kind not in DOWNSAMPLERS:
        raise ValueError(f"kind: expected one of {', '.join(DOWNSAMPLERS)}, got {shown(kind)}")
    defaults = {each.name: each.default for each in inspect.signature(DOWNSAMPLERS[kind]).parameters.values()}
    for name in given:
        if name not in defaults:
            raise ValueError(f"{shown(name)}: {kind} has no such setting, expected {', '.join(defaults) or 'none'}")
    options = {name: read_value(type(defaults[name]), value, name) for name, value in given.items()}
    complete = defaults | options
    DOWNSAMPLERS[kind](**complete)  # refuses what is out of range
    return complete


def make_downsampler(kind: str, options: Mapping[str, object]) -> Downsampler:
    """The rule with these settings. Raises ``ValueError`` that names the wrong one."""
    complete = check_options(kind, options)
    return DOWNSAMPLERS[kind](**complete)
