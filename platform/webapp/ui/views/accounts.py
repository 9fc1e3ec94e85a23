"""Set-up of the first user, log-in, API tokens, and the theme of whoever is logged in.

Leaves out the rules: ``accounts.services``.
"""

from typing import Any

from django import forms
from django.contrib.auth import login
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView
from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from webapp.accounts import services
from webapp.accounts.models import ApiToken, User
from webapp.accounts.scopes import SCOPES
from webapp.machine.checks import checks
from webapp.runs.services import Refused, WrongFields
from webapp.ui.access import found, nobody_yet, signed_in, user_of

MODEL_BACKEND = "django.contrib.auth.backends.ModelBackend"
DAYS = ((7, "7 days"), (30, "30 days"), (90, "90 days"), (365, "a year"))


def control(kind: type[forms.Widget] = forms.TextInput, **attributes: str) -> forms.Widget:
    """A widget that looks like the others."""
    return kind(attrs={"class": "form-control", **attributes})


class FirstUserForm(forms.Form):
    """The first login; what the service refuses comes beside the field as well."""

    username = forms.CharField(
        max_length=150, widget=control(autocomplete="username"), help_text="Letters, digits and @ . + - _"
    )
    password1 = forms.CharField(
        label="Password",
        strip=False,
        widget=control(forms.PasswordInput, autocomplete="new-password"),
        help_text="At least 10 characters, nothing that everybody uses.",
    )
    password2 = forms.CharField(
        label="Password again", strip=False, widget=control(forms.PasswordInput, autocomplete="new-password")
    )

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if "password1" in data and "password2" in data and data["password1"] != data["password2"]:
            self.add_error("password2", "The two passwords differ.")
        return data

    def make(self) -> User | None:
        """The user, or None when the form now says what is wrong."""
        try:
            return services.create_first_user(
                username=self.cleaned_data["username"], password=self.cleaned_data["password1"]
            )
        except WrongFields as wrong:
            for pointer, said in wrong.errors.items():
                self.add_error("username" if pointer == "/username" else "password1", said)
            return None


@sensitive_post_parameters("password1", "password2")
@require_http_methods(["GET", "HEAD", "POST"])
def setup(request: HttpRequest) -> HttpResponseBase:
    """The checks of this machine; while there is no user, also the form that makes the first one."""
    if not nobody_yet():
        return _checks_only(request)
    form = FirstUserForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            user = form.make()
        except Refused:  # somebody else was faster
            return redirect("login")
        if user is not None:
            login(request, user, backend=MODEL_BACKEND)
            return redirect("runs")
    return render(request, "ui/accounts/setup.html", {"checks": checks(), "form": form}, status=_status(form))


@signed_in
def _checks_only(request: HttpRequest) -> HttpResponse:
    return render(request, "ui/accounts/setup.html", {"checks": checks()})


def _status(form: forms.Form) -> int:
    return 422 if form.is_bound and form.errors else 200


class LogInForm(AuthenticationForm):
    """Django's, with our widgets."""

    username = forms.CharField(max_length=150, widget=control(autocomplete="username", autofocus="autofocus"))
    password = forms.CharField(strip=False, widget=control(forms.PasswordInput, autocomplete="current-password"))


class LogIn(LoginView):
    """Log-in; where there is no user yet, the way leads to the set-up."""

    template_name = "ui/accounts/login.html"
    authentication_form = LogInForm
    redirect_authenticated_user = True

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:  # type: ignore[override]
        return redirect("setup") if nobody_yet() else super().get(request, *args, **kwargs)


@signed_in
@require_POST
def theme(request: HttpRequest) -> HttpResponse:
    """Keeps the theme that the switch of the page has chosen."""
    wish = request.POST.get("theme", "")
    if wish not in ("auto", "light", "dark"):
        raise BadRequest("theme: expected auto, light or dark")
    User.objects.filter(pk=user_of(request).pk).update(theme=wish)
    return HttpResponse(status=204)


class TokenForm(forms.Form):
    name = forms.CharField(
        max_length=80, widget=control(autocomplete="off"), help_text="What it is for; you see it in this list."
    )
    scopes = forms.MultipleChoiceField(
        label="May",
        choices=list(SCOPES.items()),
        widget=forms.CheckboxSelectMultiple,
    )
    days = forms.TypedChoiceField(
        label="Valid for", choices=DAYS, coerce=int, initial=90, widget=forms.Select(attrs={"class": "form-select"})
    )


@signed_in
@require_http_methods(["GET", "HEAD", "POST"])
def tokens(request: HttpRequest) -> HttpResponse:
    """One's tokens and the form for another. The text of a new one is in the answer to the form and nowhere else."""
    form, secret = TokenForm(request.POST or None), ""
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        try:
            _, secret = services.create_token(
                user=user_of(request), name=data["name"], scopes=data["scopes"], days=data["days"]
            )
            form = TokenForm()
        except WrongFields as wrong:
            for pointer, said in wrong.errors.items():
                form.add_error(pointer.split("/")[1], said)
    context = {
        "form": form,
        "secret": secret,
        "tokens": user_of(request).api_tokens.all(),
        "now": timezone.now(),
        "base": request.build_absolute_uri("/api/v1"),
    }
    response = render(request, "ui/accounts/tokens.html", context, status=_status(form))
    response["Cache-Control"] = "no-store"
    return response


@signed_in
@require_POST
def revoke(request: HttpRequest, token_id: str) -> HttpResponse:
    services.revoke_token(found(ApiToken.objects.filter(user=user_of(request)), token_id, "token"))
    return redirect("tokens")
