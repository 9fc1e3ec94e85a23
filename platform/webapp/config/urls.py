"""Where everything is: pages at the root, REST under ``/api/v1/``."""

from django.urls import include, path

urlpatterns = [
    path("api/", include("webapp.api.urls")),
    path("", include("webapp.ui.urls")),
]

# A database that is not reachable is told as 503.
handler500 = "webapp.ui.errors.server_error"
