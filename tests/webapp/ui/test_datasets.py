"""Datasets: upload with every wrong line named, and what is in one."""

from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from tests.webapp.support import make_run
from tests.webapp.ui.markup import Page
from webapp.accounts.models import Project
from webapp.datasets.models import Dataset

pytestmark = [pytest.mark.django_db]
GOOD = b'{"problem": "1+1?", "answer": "2"}\n{"problem": "2+2?", "answer": "4"}\n'


def upload(client: Client, content: bytes, name: str = "sums", **headers: Any) -> Any:
    file = SimpleUploadedFile("sums.jsonl", content)
    return client.post("/datasets", {"name": name, "file": file}, **headers)


def test_the_page_explains_what_to_upload(client: Client) -> None:
    page = Page(client.get("/datasets").text)

    assert '{"problem": "What is 6 times 7?", "answer": "42"}' in page.text
    assert "-F file=@problems.jsonl http://testserver/api/v1/datasets" in page.by_id("upload-curl").text


def test_an_upload_leads_to_its_page(client: Client, project: Project) -> None:
    response = upload(client, GOOD)

    dataset = Dataset.objects.get()
    assert response["Location"] == f"/datasets/{dataset.pk}"
    page = Page(client.get(response["Location"]).text)
    assert [one.text for one in page.all("td", class_="anywhere prewrap")] == ["1+1?", "2", "2+2?", "4"]
    assert "2 problems" in page.words


def test_wrong_lines_are_named_and_nothing_is_stored(client: Client) -> None:
    response = upload(client, GOOD + b'{"problem": "3+3?"}\nno json <b>\n')

    page = Page(response.text)
    assert response.status_code == 422
    words = " ".join(page.by_id("upload-errors").text.split())
    assert "2 errors" in words
    assert "line 3:" in words
    assert "line 4:" in words
    assert page.by_id("id_name")["value"] == "sums"
    assert Dataset.objects.count() == 0


def test_htmx_gets_the_errors_alone_so_that_the_form_keeps_its_file(client: Client) -> None:
    response = upload(client, b"no json\n", headers={"HX-Request": "true"})

    assert response.status_code == 200
    assert Page(response.text).all("form") == []
    assert "line 1: " in Page(response.text).text
    assert upload(client, GOOD, headers={"HX-Request": "true"})["HX-Redirect"].startswith("/datasets/ds_")


@pytest.mark.parametrize(
    ("fields", "field"), [({"name": "sums"}, "id_file"), ({"name": "", "file": "x"}, "id_name")], ids=["file", "name"]
)
def test_a_missing_field_is_told_at_the_field(fields: dict[str, str], field: str, client: Client) -> None:
    response = upload(client, GOOD, name=fields["name"]) if "file" in fields else client.post("/datasets", fields)

    page = Page(response.text)
    assert response.status_code == 422
    assert page.by_id(field)["aria-invalid"] == "true"
    assert page.all("a", href=f"#{field}")


def test_a_dataset_knows_its_versions_and_the_runs_that_use_it(client: Client, project: Project) -> None:
    upload(client, GOOD)
    upload(client, GOOD + GOOD)
    first, second = Dataset.objects.order_by("version")
    make_run(project, name="uses it", datasets={"rl": first.pk})
    make_run(project, name="uses the other", datasets={"rl": second.pk})

    page = Page(client.get(f"/datasets/{first.pk}").text)

    assert page.all("a", href=f"/datasets/{second.pk}")
    assert "uses it" in page.words
    assert "uses the other" not in page.words
    assert page.all("a", href=f"/runs/new?dataset={first.pk}")


def test_problems_that_are_worth_a_look_are_counted(client: Client) -> None:
    upload(client, GOOD + GOOD + b'{"problem": "1+1?", "answer": "3"}\n{"problem": "Why?", "answer": "\\\\frac{"}\n')
    dataset = Dataset.objects.get()

    page = Page(client.get(f"/datasets/{dataset.pk}").text)

    assert f"{dataset.duplicates} problems with the text of an earlier one." in page.words
    assert f"{dataset.conflicts} text with more than one answer." in page.words
    assert dataset.ungradable == page.words.count("not gradable") > 0
