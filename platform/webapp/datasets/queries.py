"""What pages and REST show of datasets. Leaves out their problems: ``dataset.problems`` is ordered by line."""

from django.contrib.auth.models import AnonymousUser
from django.db.models import QuerySet

from webapp.accounts.models import User
from webapp.accounts.policies import visible
from webapp.datasets.models import Dataset


def dataset_list(user: User | AnonymousUser) -> QuerySet[Dataset]:
    """Every version that the user sees and that is not archived, newest first; with project and maker."""
    return visible(Dataset.objects.filter(archived_at=None), user).select_related("project", "created_by")


def versions_of(dataset: Dataset) -> QuerySet[Dataset]:
    """All versions of the dataset, archived ones too, newest first."""
    versions = Dataset.objects.filter(project=dataset.project_id, name=dataset.name)
    return versions.select_related("project", "created_by").order_by("-version")
