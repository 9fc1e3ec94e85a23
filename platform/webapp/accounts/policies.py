"""Who may see what: one place, used by pages, REST and WebSocket. What one may not see does not exist for one (404).

Today: a project and everything in it belongs to its owner; superusers see all. Roles come with "The platform's core".
"""

from typing import TypeVar

from django.contrib.auth.models import AnonymousUser
from django.db.models import Model, Q, QuerySet

from webapp.accounts.models import Project, User

M = TypeVar("M", bound=Model)


def projects(user: User | AnonymousUser) -> QuerySet[Project]:
    """Projects that the user sees."""
    if user.is_anonymous:
        return Project.objects.none()
    return Project.objects.all() if user.is_superuser else Project.objects.filter(owner=user)


def visible(rows: QuerySet[M], user: User | AnonymousUser, project: str = "project") -> QuerySet[M]:
    """Those of ``rows`` that the user sees; ``project``: the lookup that leads to their project."""
    if user.is_anonymous:
        return rows.none()
    return rows if user.is_superuser else rows.filter(**{f"{project}__owner": user})


def visible_recipes(rows: QuerySet[M], user: User | AnonymousUser) -> QuerySet[M]:
    """Recipes: one's own and the built-in ones."""
    if user.is_anonymous:
        return rows.none()
    return rows if user.is_superuser else rows.filter(Q(project__isnull=True) | Q(project__owner=user))
