"""Addresses of REST: everything lies under ``/api/v1/``; the schema and its browser are beside it."""

from django.urls import URLPattern, URLResolver

urlpatterns: list[URLPattern | URLResolver] = []
