"""``Idempotency-Key`` for every POST: the same request again gets the same answer, and the work is done once.

Work and answer are one transaction, held by a lock of the key, so a server that dies in between leaves neither, and two
equal requests at the same time cannot both work. Only answers of success are kept: a refused request has changed
nothing and may be corrected under the same key. Leaves out ingest, whose batches number themselves.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import wraps
from typing import Any, TypeVar

from django.db import connection, transaction
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from webapp.accounts.models import User
from webapp.api.models import IdempotencyRecord
from webapp.api.problems import Problem
from webapp.api.renderers import strict_json

KEPT = timedelta(hours=24)
_KEY = re.compile(r"[\x21-\x7e]{1,255}")

V = TypeVar("V")
Handler = Callable[..., Response]


def idempotent(*, secret: Iterable[str] = ()) -> Callable[[Handler], Handler]:
    """Decorates a view's ``post``. ``secret``: fields of the answer that are shown once and not kept: null again."""
    hidden = frozenset(secret)

    def decorate(handler: Handler) -> Handler:
        @wraps(handler)
        def once(view: Any, request: Request, *args: Any, **kwargs: Any) -> Response:
            key = request.headers.get("Idempotency-Key")
            if key is None:
                return handler(view, request, *args, **kwargs)
            if not _KEY.fullmatch(key):
                said = "Idempotency-Key: expected 1 to 255 visible ASCII characters, such as a UUID."
                raise Problem(400, "Wrong header", said, "wrong_idempotency_key")
            return _once(request, key, hidden, lambda: handler(view, request, *args, **kwargs))

        once.idempotent = True  # type: ignore[attr-defined]  # a test asks every POST for it
        return once

    return decorate


def _once(request: Request, key: str, hidden: frozenset[str], work: Callable[[], Response]) -> Response:
    user = request.user
    assert isinstance(user, User)  # permissions have made sure
    digest = request_hash(request)
    with transaction.atomic():
        _lock(user, key)
        _forget_old()
        record = IdempotencyRecord.objects.filter(user=user, key=key).first()
        if record is not None:
            return replay(record, digest)
        response = work()
        if response.status_code < 400:
            keep(user, key, digest, response, hidden)
    return response


def _lock(user: User, key: str) -> None:
    """Hold the key until the end of the transaction, however it ends; 409 when another request holds it."""
    number = int.from_bytes(hashlib.sha256(f"{user.pk}\x1f{key}".encode()).digest()[:8], "big", signed=True)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [number])
        (held,) = cursor.fetchone()
    if not held:
        said = "A request with this Idempotency-Key is being worked on; ask again in a moment."
        raise Problem(409, "In flight", said, "in_flight", headers={"Retry-After": "1"})


def _forget_old() -> None:
    IdempotencyRecord.objects.filter(created_at__lt=timezone.now() - KEPT).delete()


def replay(record: IdempotencyRecord, digest: str) -> Response:
    """The answer that was given. Raises 422 when the request is another one."""
    if record.request_hash != digest:
        said = "This Idempotency-Key was used for another request; take a new key for a new request."
        raise Problem(422, "Key used for another request", said, "idempotency_key_reused")
    return Response(record.body, record.status, headers={**record.headers, "Idempotency-Replayed": "true"})


def keep(user: User, key: str, digest: str, response: Response, hidden: frozenset[str]) -> None:
    """Store the answer as the client sees it, but for what is shown only once."""
    body: dict[str, Any] = json.loads(strict_json(response.data))
    body.update(dict.fromkeys(hidden & body.keys()))
    headers = {name: response[name] for name in ("Location",) if name in response}
    IdempotencyRecord.objects.create(
        user=user, key=key, request_hash=digest, status=response.status_code, headers=headers, body=body
    )


def request_hash(request: Request) -> str:
    """SHA-256 of what makes a request the same: method, address, values of the body, contents of files."""
    digest = hashlib.sha256(f"{request.method} {request.get_full_path()}\n".encode())
    data: Any = request.data
    files = {name: value for name, value in data.items() if hasattr(value, "read")} if isinstance(data, dict) else {}
    values = {name: value for name, value in data.items() if name not in files} if files else data
    digest.update(json.dumps(values, sort_keys=True).encode())
    for name, file in sorted(files.items()):
        digest.update(f"\n{name}\n".encode())
        while chunk := file.read(1 << 18):
            digest.update(chunk)
        file.seek(0)
    return digest.hexdigest()
