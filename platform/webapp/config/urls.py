"""Where everything is: pages at the root, REST under ``/api/v1/``."""

from django.urls import include, path

urlpatterns = [
    path("api/", include("webapp.api.urls")),
    path("", include("webapp.ui.urls")),
]
