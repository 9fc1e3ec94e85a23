"""Datasets: the list with its upload form, and one dataset with what is in it and what used it.

A file with wrong lines is refused as a whole, with the lines named; htmx shows them beside the form, which keeps the
chosen file. Leaves out reading the file: ``datasets.services``.
"""

from typing import Any

from django import forms
from django.core.files.uploadedfile import UploadedFile
from django.db.models import TextField
from django.db.models.functions import Cast
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe
from django_htmx.http import HttpResponseClientRedirect

from webapp.accounts import policies
from webapp.accounts.services import default_project
from webapp.datasets import services
from webapp.datasets.models import Dataset
from webapp.runs.models import Run
from webapp.runs.services import WrongFields
from webapp.ui import api_calls
from webapp.ui.access import found, signed_in, user_of
from webapp.ui.paging import page
from webapp.ui.views.accounts import control

PAGE_SIZE = 50
SHOWN_PROBLEMS = 50
SHOWN_RUNS = 20


class UploadForm(forms.Form):
    name = forms.CharField(
        max_length=80,
        widget=control(autocomplete="off"),
        help_text="A name that exists gets another version; versions never change.",
    )
    file = forms.FileField(
        label="JSONL file", widget=control(forms.FileInput, accept=".jsonl,.ndjson,.json,text/plain")
    )


@signed_in
@require_http_methods(["GET", "HEAD", "POST"])
def datasets(request: HttpRequest) -> HttpResponse:
    """The list, and uploads."""
    form, refused = UploadForm(request.POST or None, request.FILES or None), None
    if request.method == "POST" and form.is_valid():
        try:
            made = services.upload(
                user=user_of(request),
                project=default_project(user_of(request)),
                name=form.cleaned_data["name"],
                file=_binary(form.cleaned_data["file"]),
            )
            return _go(request, reverse("dataset", args=[made.pk]))
        except services.DatasetRefused as error:
            refused = error
        except WrongFields as wrong:
            for pointer, said in wrong.errors.items():
                form.add_error(pointer.strip("/") if pointer.strip("/") in form.fields else None, said)
    return _list(request, form, refused)


def _binary(upload: "UploadedFile[Any]") -> Any:
    """The uploaded bytes as a file."""
    return upload.file


def _go(request: HttpRequest, address: str) -> HttpResponse:
    return HttpResponseClientRedirect(address) if request.headers.get("HX-Request") else redirect(address)


def _list(request: HttpRequest, form: UploadForm, refused: services.DatasetRefused | None) -> HttpResponse:
    wrong = refused is not None or bool(form.is_bound and form.errors)
    context: dict[str, Any] = {"form": form, "refused": refused, "curl": api_calls.upload_dataset(request)}
    if request.headers.get("HX-Request") and request.method == "POST":
        return render(request, "ui/datasets/errors.html", context)  # 200, for htmx shows no other answer
    rows = policies.visible(Dataset.objects.filter(archived_at__isnull=True), request.user)
    context["page"] = page(rows.select_related("created_by"), request.GET, PAGE_SIZE)
    return render(request, "ui/datasets/list.html", context, status=422 if wrong else 200)


@signed_in
@require_safe
def dataset(request: HttpRequest, dataset_id: str) -> HttpResponse:
    """One version: its first problems, its other versions, the runs that learned from it."""
    row = found(
        policies.visible(Dataset.objects.select_related("created_by", "project"), request.user), dataset_id, "dataset"
    )
    used = Run.objects.filter(project=row.project).annotate(chosen=Cast("datasets", TextField()))
    context = {
        "dataset": row,
        "problems": row.problems.all()[:SHOWN_PROBLEMS],
        "versions": Dataset.objects.filter(project=row.project, name=row.name).order_by("-version"),
        "runs": used.filter(chosen__contains=f'"{row.pk}"').defer("spec", "toml")[:SHOWN_RUNS],
        "shown": SHOWN_PROBLEMS,
    }
    return render(request, "ui/datasets/page.html", context)
