"""What pages do, as calls of the public API: shown with a placeholder for the token, ready to copy.

Leaves out the reference: ``/api/docs`` has every call.
"""

from django.http import HttpRequest

_TOKEN = "-H 'Authorization: Bearer sl_…'"


def follow_run(request: HttpRequest, run_id: str) -> str:
    """See a run, follow it, and command it."""
    base = _base(request)
    return "\n".join(
        (
            f"curl {_TOKEN} {base}/runs/{run_id}",
            f"curl {_TOKEN} '{base}/runs/{run_id}/updates?since=0'",
            f"curl {_TOKEN} -X POST {base}/runs/{run_id}/commands/checkpoint",
            f"curl {_TOKEN} {base}/runs/{run_id}/export",
        )
    )


def create_run(request: HttpRequest, version_id: str) -> str:
    """Start a run of a saved version; the key makes a repeated call find the same run."""
    return (
        f"curl {_TOKEN} -H 'Content-Type: application/json' -H 'Idempotency-Key: my-run-1' \\\n"
        f'  -d \'{{"recipe_version": "{version_id}"}}\' {_base(request)}/runs'
    )


def upload_dataset(request: HttpRequest) -> str:
    return f"curl {_TOKEN} -F name=my-problems -F file=@problems.jsonl {_base(request)}/datasets"


def _base(request: HttpRequest) -> str:
    return request.build_absolute_uri("/api/v1")
