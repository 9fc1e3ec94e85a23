"""Tags and filters of the pages: icons, numbers, times, and text that is safe to look at.

Leaves out wording (``ui.wording``) and what makes text harmless (``ui.inert``): this file only lends them to templates.
"""

from datetime import datetime
from typing import Any

from django import template
from django.http import HttpRequest
from django.templatetags.static import static
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from webapp.ui import highlight, inert, wording
from webapp.ui.drafts import element_of
from webapp.ui.frame import Frame, frame_of

register = template.Library()

register.filter("number", wording.number)
register.filter("percent", wording.percent)
register.filter("duration", wording.duration)


@register.simple_tag(takes_context=True)
def frame(context: dict[str, Any]) -> Frame:
    """What is around this page."""
    request: HttpRequest = context["request"]
    return frame_of(request)


@register.simple_tag
def icon(name: str, label: str = "") -> SafeString:
    """An icon of ``icons.svg``; without a label it is decoration beside a text."""
    address = f"{static('ui/icons.svg')}#{name}"
    if label:
        return format_html(
            '<svg class="icon" role="img" aria-label="{}" width="24" height="24"><use href="{}"></use></svg>',
            label,
            address,
        )
    return format_html(
        '<svg class="icon" aria-hidden="true" width="24" height="24"><use href="{}"></use></svg>', address
    )


@register.simple_tag
def state(value: str) -> SafeString:
    """A run's state: the style sheet adds icon and colour by ``data-state``."""
    return format_html('<span class="state" data-state="{}">{}</span>', value, value)


@register.filter
def visible(text: str | None) -> str:
    """Hostile text with hidden characters named; the template escapes it."""
    return inert.visible(text or "")


@register.filter
def one_line(text: str | None, longest: int = 80) -> str:
    return inert.one_line(text or "", longest)


@register.filter
def moment(at: datetime | None) -> SafeString | str:
    """A time as its age, the exact time on hover and for programs."""
    if at is None:
        return wording.NOTHING
    exact = at.astimezone(timezone.get_current_timezone())
    return format_html(
        '<time datetime="{}" title="{} UTC" data-age>{}</time>',
        exact.strftime("%Y-%m-%dT%H:%M:%SZ"),
        exact.strftime("%Y-%m-%d %H:%M:%S"),
        wording.age(at, timezone.now()),
    )


@register.filter
def short_text(text: str, longest: int = 500) -> str:
    """A text for a table's cell: its beginning, with its line breaks."""
    return inert.visible(text if len(text) <= longest else text[: longest - 1] + "…")


@register.filter
def selection(reason: str) -> str:
    """Down-sampling's code in a few words."""
    return wording.SELECTION.get(reason, reason)


@register.filter
def element_id(pointer: str) -> str:
    """The id of a recipe field's input."""
    return element_of(pointer)


@register.filter
def humanize_size(characters: int) -> str:
    """``812 characters``, ``3.4 KB``, ``1.0 MB`` of text."""
    for size, unit in ((10**6, "MB"), (10**3, "KB")):
        if characters >= size:
            return f"{characters / size:.1f} {unit}"
    return f"{characters} characters"


@register.filter
def toml(text: str) -> SafeString:
    """A recipe in colour."""
    return highlight.code(text, "toml")


@register.filter
def metric_format(key: str) -> str:
    """How the page's script is to write a metric: ``percent`` or ``number``."""
    return wording.METRICS.get(key, ("", "number"))[1]


@register.filter
def item(mapping: dict[str, Any], key: str) -> Any:
    """``mapping[key]``, which templates cannot say for keys such as ``pass@1``; None when it is not there."""
    return mapping.get(key)
