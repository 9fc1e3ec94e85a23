"""API tokens and projects of whoever asks."""

from typing import ClassVar

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse

from webapp.accounts import policies
from webapp.accounts.models import ApiToken, Project
from webapp.accounts.services import create_token, revoke_token
from webapp.api.bodies import NewToken
from webapp.api.idempotency import idempotent
from webapp.api.serializers import IssuedToken, ProjectResource, TokenResource
from webapp.api.views.base import ApiView, ListView, found, wrong_fields
from webapp.runs.services import WrongFields


class TokenList(ListView):
    required_scopes: ClassVar = {"GET": "tokens:manage", "POST": "tokens:manage"}
    model, schema_class = ApiToken, TokenResource

    def rows(self) -> QuerySet[ApiToken]:
        return ApiToken.objects.filter(user=self.who)

    @extend_schema(summary="List API tokens", responses=TokenResource(many=True))
    def get(self, request: Request) -> Response:
        """Your tokens, newest first, without their secrets."""
        return self.answer(lambda token: TokenResource(token).data)

    @extend_schema(summary="Create an API token", request=NewToken, responses={201: IssuedToken})
    @idempotent(secret=["token"])
    def post(self, request: Request) -> Response:
        """The answer holds the token: it is shown once and stored as a hash. A token can give no scope that it does not
        have. A replayed answer has `token: null`."""
        body = NewToken(data=request.data)
        body.is_valid(raise_exception=True)
        asking = request.auth.scopes if isinstance(request.auth, ApiToken) else None
        try:
            token, text = create_token(user=self.who, granted=asking, **body.validated_data)
        except WrongFields as error:
            raise wrong_fields(error) from error
        where = reverse("api:token", [token.pk], request=request)
        return Response({**TokenResource(token).data, "token": text}, 201, headers={"Location": where})


class TokenView(ApiView):
    required_scopes: ClassVar = {"GET": "tokens:manage", "DELETE": "tokens:manage"}
    schema_class = TokenResource

    def token(self) -> ApiToken:
        return found(ApiToken.objects.filter(user=self.who), self.kwargs["token_id"])

    @extend_schema(summary="Read an API token", responses=TokenResource)
    def get(self, request: Request, token_id: str) -> Response:
        """A token without its secret."""
        return Response(self.selected(TokenResource(self.token()).data))

    @extend_schema(summary="Revoke an API token", responses={204: None})
    def delete(self, request: Request, token_id: str) -> Response:
        """From now on the token proves nothing. Revoking it again changes nothing."""
        revoke_token(self.token())
        return Response(status=204)


class ProjectList(ListView):
    required_scopes: ClassVar = {"GET": "runs:read"}
    model, schema_class = Project, ProjectResource
    orderings: ClassVar = {"id": ("id",), "created_at": ("id",)}
    default_ordering = "id"

    def rows(self) -> QuerySet[Project]:
        return policies.projects(self.who).select_related("owner")

    @extend_schema(summary="List projects", responses=ProjectResource(many=True))
    def get(self, request: Request) -> Response:
        """Projects that you may see."""
        return self.answer(lambda project: ProjectResource(project).data)
