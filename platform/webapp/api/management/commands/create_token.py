"""``manage.py create_token USER``: an API token for scripts, without the browser."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from webapp.accounts.models import User
from webapp.accounts.scopes import SCOPES
from webapp.accounts.services import DEFAULT_DAYS, create_token
from webapp.runs.services import WrongFields


class Command(BaseCommand):
    help = "Create an API token for a user and print it. It is shown once and stored as a hash."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("user", help="user name")
        parser.add_argument("--name", default="command line", help="what the token is for")
        parser.add_argument(
            "--scope",
            action="append",
            choices=list(SCOPES),
            help="what it may do, repeatable; default: all",
        )
        parser.add_argument("--days", type=int, default=DEFAULT_DAYS, help="its life in days")

    def handle(self, *args: Any, user: str, name: str, scope: list[str] | None, days: int, **options: Any) -> None:
        try:
            owner = User.objects.get(username=user, is_active=True)
            _, text = create_token(user=owner, name=name, scopes=scope or list(SCOPES), days=days)
        except User.DoesNotExist as error:
            raise CommandError(f"there is no user {user!r} who may log in") from error
        except WrongFields as error:
            raise CommandError(str(error)) from error
        self.stdout.write(text)
