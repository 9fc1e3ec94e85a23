"""The page of the sandbox: its nodes, how they isolate programs, and the queue; it renews itself.

Leaves out what runs did with it: the charts of a run.
"""

from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from sandbox.contract import SandboxStatus, SandboxUnavailable
from webapp.machine import sandbox_door
from webapp.ui import wording
from webapp.ui.access import signed_in

POLL = "every 3s"


@signed_in
@require_safe
def sandbox(request: HttpRequest) -> HttpResponse:
    """htmx asks for the part that changes alone."""
    template = "status" if request.headers.get("HX-Target") == "sandbox-status" else "page"
    context = {"place": settings.SANDBOX, "poll": POLL, **_found()}
    return render(request, f"ui/sandbox/{template}.html", context)


def _found() -> dict[str, Any]:
    try:
        status = sandbox_door.status(settings.SANDBOX)
    except SandboxUnavailable as error:
        return {"trouble": str(error)}
    return {
        "status": status,
        "facts": _facts(status),
        "tiers": [(tier, words) for tier, words in wording.TIERS.items() if tier in {n.tier for n in status.nodes}],
        "waiting": status.queued_interactive + status.queued_training,
        "command": f"python -m sandbox node --valkey {settings.SANDBOX.shown}",
    }


def _facts(status: SandboxStatus) -> list[tuple[str, str]]:
    """The sandbox as a whole: label and figure."""
    busy, slots = sum(node.busy for node in status.nodes), sum(node.slots for node in status.nodes)
    return [
        ("Nodes", wording.number(len(status.nodes))),
        ("Slots at work", f"{wording.number(busy)} of {wording.number(slots)}"),
        ("Sessions", wording.number(sum(node.sessions for node in status.nodes))),
        ("Interactive calls waiting", wording.number(status.queued_interactive)),
        ("Training calls waiting", wording.number(status.queued_training)),
    ]
