"""The ASGI application: HTTP by Django, WebSockets by ``webapp.live``, for people with a session only."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.config.settings")

from django.core.asgi import get_asgi_application

django_application = get_asgi_application()  # sets Django up: what follows needs its models

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator

from webapp.live.routing import websocket_urlpatterns

application = ProtocolTypeRouter(
    {
        "http": django_application,
        "websocket": AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(websocket_urlpatterns))),
    }
)
