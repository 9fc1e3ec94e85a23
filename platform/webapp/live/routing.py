"""Addresses of WebSockets."""

from django.urls import URLPattern, path

from webapp.live.consumer import RunConsumer

websocket_urlpatterns: list[URLPattern] = [path("ws/v1/runs/<str:run_id>", RunConsumer.as_asgi())]
