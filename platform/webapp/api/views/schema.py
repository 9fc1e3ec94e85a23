"""The schema of this API, and Swagger UI to try it with, both from this server alone."""

from typing import ClassVar

from django.contrib.auth.decorators import login_required
from drf_spectacular.renderers import OpenApiJsonRenderer
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from webapp.api.permissions import ANY_SCOPE, HasScope
from webapp.api.renderers import StrictJsonRenderer


class SchemaView(SpectacularAPIView):
    """OpenAPI 3.1, the same as docs/openapi.json."""

    required_scopes: ClassVar = {"GET": ANY_SCOPE}
    permission_classes = (HasScope,)
    renderer_classes = [StrictJsonRenderer, OpenApiJsonRenderer]  # noqa: RUF012  (as its parent has it)


class DocsView(SpectacularSwaggerSplitView):
    """Swagger UI of the sidecar package. Page and script are apart, so that no script is inline."""

    required_scopes: ClassVar = {"GET": ANY_SCOPE}
    permission_classes = (HasScope,)
    template_name = "api/swagger_ui.html"
    url_name = "api:schema"


docs = login_required(DocsView.as_view())
