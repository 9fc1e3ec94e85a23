"""The platform as an engine sees it: one address, GET and POST (``engine.contract.delivery``), and what answers mean.

Every answer becomes an ``Answer`` or one of four exceptions. Redirects are not followed and the token goes nowhere but
into the header of requests to this address. Leaves out when to send and when to send again: ``shipper.py``.
"""

import email.utils
import ipaddress
import time
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import quote

import httpx
import pyarrow as pa
from pydantic import ValidationError

from engine.contract.delivery import Answer, Batch

URL_VARIABLE, TOKEN_VARIABLE = "STARLOOM_PLATFORM_URL", "STARLOOM_RUN_TOKEN"

_CONNECT_S = 5.0
_WORDS = 300


class WrongAddress(Exception):
    """Settings that name no platform; the message says which and what was expected."""


class Undelivered(Exception):
    """The platform did not take it now; later it may. ``retry_after``: seconds that it asked us to wait."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Gap(Exception):
    """The platform lacks events before these; ``cursor`` is what it has."""

    def __init__(self, cursor: Mapping[int, int]) -> None:
        super().__init__(f"the platform has {dict(cursor)}")
        self.cursor = dict(cursor)


class Refused(Exception):
    """The platform will never take this batch as it is: too large, or wrong."""


class Dismissed(Exception):
    """The platform wants nothing more from this engine: another launch took over, or the token is not good."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the events of a run go, and the token that proves whose they are."""

    url: str
    token: str = field(repr=False)

    @classmethod
    def taken_from(cls, environment: MutableMapping[str, str]) -> Self | None:
        """What the environment says, or None if it names no platform. Raises ``WrongAddress``.

        Both are taken out of it: the processes that we start have no business with the token.
        """
        url, token = (environment.pop(name, "").strip() for name in (URL_VARIABLE, TOKEN_VARIABLE))
        if not url and not token:
            return None
        if not url or not token:
            there, missing = (TOKEN_VARIABLE, URL_VARIABLE) if token else (URL_VARIABLE, TOKEN_VARIABLE)
            raise WrongAddress(f"{there} is set and {missing} is not: shipping a run's events takes both")
        if not _is_good(url):
            raise WrongAddress(f"{URL_VARIABLE}: expected http(s)://host[:port][/path], got {url!r}")
        if not (token.isascii() and token.isprintable()):
            raise WrongAddress(f"{TOKEN_VARIABLE} is no token: it has characters that no header can carry")
        return cls(url.rstrip("/"), token)


def _is_good(url: str) -> bool:
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        return False
    plain = not (parts.userinfo or parts.query or parts.fragment)
    return parts.scheme in ("http", "https") and bool(parts.host) and plain


class PlatformClient:
    """Talks to the platform about one run. Used by one thread."""

    def __init__(self, address: Address, run_id: str, timeout_s: float = 30.0) -> None:
        self.url = f"{address.url}/api/v1/runs/{quote(run_id, safe='')}/events"
        place = httpx.URL(address.url)
        self._http = httpx.Client(
            headers={"Authorization": f"Bearer {address.token}", "Accept": "application/json"},
            timeout=httpx.Timeout(timeout_s, connect=min(_CONNECT_S, timeout_s)),
            follow_redirects=False,
            verify=place.scheme == "https",  # without TLS there is nothing to load a tenth of a second for
            trust_env=not _is_loopback(place.host),  # no proxy between us and this machine
        )

    def cursor(self) -> dict[int, int]:
        """What the platform has of the run: attempt -> seq of the last event."""
        return self._answer("GET").cursor

    def post(self, batch: Batch) -> Answer:
        """Send a batch. Raises ``Undelivered``, ``Gap``, ``Refused`` or ``Dismissed``."""
        body = pa.compress(batch.model_dump_json().encode(), codec="zstd", asbytes=True)
        return self._answer(
            "POST", content=body, headers={"Content-Type": "application/json", "Content-Encoding": "zstd"}
        )

    def close(self) -> None:
        self._http.close()

    def _answer(self, method: str, **request: Any) -> Answer:
        try:
            response = self._http.request(method, self.url, **request)
        except httpx.HTTPError as error:
            raise Undelivered(f"{self.url}: {str(error) or type(error).__name__}") from error
        if response.status_code != httpx.codes.OK:
            raise self._trouble(response)
        try:
            return Answer.model_validate_json(response.content)
        except ValidationError as error:
            raise Undelivered(f"{self.url} answers with something else than a platform does") from error

    def _trouble(self, response: httpx.Response) -> Exception:
        """What a status other than 200 means."""
        problem = _problem(response)
        said = f"{self.url}: {response.status_code} {response.reason_phrase}{_detail(problem)}"
        match response.status_code, problem.get("code"):
            case 409, "superseded":
                return Dismissed("another launch of this run has taken over")
            case ((401 | 403), _):
                return Dismissed(f"the platform does not accept the run's token: {said}")
            case 409, "gap":
                return _gap(problem) or Undelivered(f"{said}: without a cursor")
            case ((400 | 413 | 422), _):
                return Refused(said)
            case status, _ if 300 <= status < 400:
                return Undelivered(f"{said}: redirects are not followed, mend {URL_VARIABLE}")
        return Undelivered(said, _retry_after(response))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _problem(response: httpx.Response) -> dict[str, Any]:
    """The problem document of an error, or nothing: a proxy's error page is none."""
    try:
        found = response.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _detail(problem: Mapping[str, Any]) -> str:
    said = problem.get("detail") or problem.get("title")
    return f": {said!s:.{_WORDS}}" if said else ""


def _gap(problem: Mapping[str, Any]) -> Gap | None:
    try:
        return Gap(Answer.model_validate({"cursor": problem.get("cursor")}).cursor)
    except ValidationError:
        return None


def _retry_after(response: httpx.Response) -> float | None:
    """Seconds or a date, as HTTP has it."""
    value = response.headers.get("Retry-After", "").strip()
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError):
        return None
