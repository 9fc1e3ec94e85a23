"""Whether this server can serve: for supervisors and load balancers. Leaves out everything but the database."""

from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe


@require_safe
@never_cache
def healthz(request: HttpRequest) -> HttpResponse:
    """``ok`` after a round trip to the database, else 503 with what is wrong."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError as error:
        reason = type(error).__name__
        return HttpResponse(f"the database does not answer ({reason})\n", status=503, content_type="text/plain")
    return HttpResponse("ok\n", content_type="text/plain")
