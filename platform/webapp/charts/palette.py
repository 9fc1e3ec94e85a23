"""Colours of traces: eight hues that colour-blind eyes keep apart (after Okabe and Ito).

A trace names its hue by number in ``meta.slot`` and carries the one for light pages; a dark page replaces it by the
variable ``--sl-series-<slot>`` of the style sheet, which holds the same numbers.
"""

COLOURS = {
    1: "#0072b2",
    2: "#c25400",
    3: "#008262",
    4: "#b2558b",
    5: "#946c00",
    6: "#2a86bd",
    7: "#5b5f66",
    8: "#8c2d19",
}


def faint(slot: int) -> str:
    """The hue of a band behind a line."""
    red, green, blue = (int(COLOURS[slot][start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"
