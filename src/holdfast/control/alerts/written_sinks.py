"""Sinks as a person writes them. One function each; what all have is read once."""

from __future__ import annotations

from dataclasses import dataclass
from email.utils import parseaddr
from pathlib import Path
from typing import Final

from holdfast.control.alerts.posting import BadAddress, check_address, is_loopback
from holdfast.control.alerts.secret import Secret
from holdfast.control.alerts.sinks import Sink
from holdfast.control.alerts.sinks.alertmanager import Alertmanager
from holdfast.control.alerts.sinks.mail import PORTS, Mail, Tls
from holdfast.control.alerts.sinks.slack import Slack
from holdfast.control.alerts.sinks.webhook import Webhook
from holdfast.control.alerts.written import Bad, Written
from holdfast.detect.rules.document import Value

_COMMON: Final = ("kind", "timeout", "ca_file")
_URL: Final = ("url", "url_env", "url_file")
_PASSWORD: Final = ("password", "password_env", "password_file")
# The bare names of secrets are known so that the error can say where a secret belongs.
KINDS: Final[dict[str, tuple[str, ...]]] = {
    "webhook": (*_COMMON, "send_resolved", *_URL, "key", "key_env", "key_file"),
    "email": (*_COMMON, "send_resolved", "server", "tls", "from", "to", "user", *_PASSWORD),
    "slack": (*_COMMON, "send_resolved", *_URL),
    "alertmanager": (*_COMMON, *_URL, "user", *_PASSWORD, "token", "token_env", "token_file", "resend"),
}


@dataclass(frozen=True, slots=True)
class _Common:
    timeout_s: float
    ca_file: str
    send_resolved: bool


def read_sink(written: Written, name: str, value: Value, link: str) -> Sink:
    if value.fields is None or "kind" not in value.fields:
        raise Bad(value.line, f"a sink is a mapping with a `kind` of {', '.join(KINDS)}; seen {value.kind if value.fields is None else 'none'}")
    kind = written.one_of(value.fields["kind"], tuple(KINDS), "kind of sink")
    fields = written.fields(value, KINDS[kind], f"a sink of kind {kind} is a mapping")
    common = _Common(
        timeout_s=written.span(fields.get("timeout"), 20.0 if kind == "email" else 10.0, least_s=0.1), ca_file=_ca_file(written, fields.get("ca_file")),
        send_resolved=written.yes(fields["send_resolved"]) if "send_resolved" in fields else True,
    )  # fmt: skip
    match kind:
        case "webhook":
            return _webhook(written, name, value.line, fields, common, link)
        case "slack":
            return _slack(written, name, value.line, fields, common, link)
        case "alertmanager":
            return _alertmanager(written, name, value.line, fields, common, link)
        case _:
            return _mail(written, name, value.line, fields, common, link)


def _webhook(written: Written, name: str, line: int, fields: dict[str, Value], common: _Common, link: str) -> Webhook:
    key = written.secret(fields, "key")
    if key is None:
        raise Bad(line, "a webhook is signed: name the environment variable or file that holds the key with `key_env` or `key_file`")
    return Webhook(
        name=name, url=_url(written, line, fields), key=key, link=link, ca_file=common.ca_file, timeout_s=common.timeout_s, send_resolved=common.send_resolved
    )


def _slack(written: Written, name: str, line: int, fields: dict[str, Value], common: _Common, link: str) -> Slack:
    url = written.secret(fields, "url")
    if url is None:
        raise Bad(line, "the address is missing, and it is a secret: name an environment variable with `url_env`, or a file with `url_file`")
    return Slack(name=name, url=url, link=link, ca_file=common.ca_file, timeout_s=common.timeout_s, send_resolved=common.send_resolved)


def _alertmanager(written: Written, name: str, line: int, fields: dict[str, Value], common: _Common, link: str) -> Alertmanager:
    password, token = written.secret(fields, "password"), written.secret(fields, "token")
    user = written.text(fields["user"]) if "user" in fields else ""
    if bool(user) != (password is not None):
        raise Bad(fields["user"].line if user else line, "`user` and `password_env` or `password_file` go together")
    if user and token is not None:
        raise Bad(fields["user"].line, "only one of a user with a password and a token can be meant")
    return Alertmanager(
        name=name, url=_url(written, line, fields, secret=bool(user or token)), user=user, password=password, token=token, link=link, ca_file=common.ca_file,
        timeout_s=common.timeout_s, resend_s=written.span(fields.get("resend"), 60.0, least_s=1.0),
    )  # fmt: skip


def _mail(written: Written, name: str, line: int, fields: dict[str, Value], common: _Common, link: str) -> Mail:
    for needed in ("server", "from", "to"):
        if needed not in fields:
            raise Bad(line, f"`{needed}` is missing; a sink of kind email has `server`, `from` and `to`")
    tls = Tls(written.one_of(fields["tls"], tuple(Tls), "tls")) if "tls" in fields else Tls.STARTTLS
    host, port = _server(written, fields["server"], tls)
    sender, to = _addresses(written, fields["from"]), _addresses(written, fields["to"])
    if len(sender) != 1:
        raise Bad(fields["from"].line, "expected one address, such as holdfast@example.org")
    user, password = written.text(fields["user"]) if "user" in fields else "", written.secret(fields, "password")
    if bool(user) != (password is not None):
        raise Bad(fields["user"].line if user else line, "`user` and `password_env` or `password_file` go together")
    if password is not None and tls is Tls.NONE and not is_loopback(host):
        raise Bad(fields["tls"].line, "with `tls: none` the password would travel in the clear; use starttls or tls")
    return Mail(
        name=name, host=host, port=port, sender=sender[0], to=to, tls=tls, user=user, password=password, link=link, ca_file=common.ca_file,
        timeout_s=common.timeout_s, send_resolved=common.send_resolved,
    )  # fmt: skip


def _url(written: Written, line: int, fields: dict[str, Value], *, secret: bool = False) -> Secret:
    url = written.secret(fields, "url", plain=True)
    if url is None:
        raise Bad(line, "the address is missing: give it as `url`, or where it is as `url_env` or `url_file`")
    if url.plain:
        try:
            check_address(url.plain, secret=secret)
        except BadAddress as error:
            raise Bad(fields["url"].line, f"`url` {error}") from error
    elif not (url.env or url.file):
        raise Bad(fields["url"].line, "`url` is empty")
    return url


def _server(written: Written, value: Value, tls: Tls) -> tuple[str, int]:
    text = written.text(value)
    host, colon, port = text.rpartition(":") if ":" in text else (text, "", "")
    host = host.removeprefix("[").removesuffix("]")
    if not host or "/" in host or " " in host or (colon and not (port.isdecimal() and 0 < int(port) < 65536)):
        raise Bad(value.line, f"`server` is a host, or a host and a port such as smtp.example.org:587; seen {text!r}")
    return host, int(port) if colon else PORTS[tls]


def _addresses(written: Written, value: Value) -> tuple[str, ...]:
    found = written.texts(value)
    for text in found:
        _, address = parseaddr(text)
        local, at, domain = address.rpartition("@")
        if not at or not local or not domain or "," in text:
            raise Bad(value.line, f"{text!r} is no address; expected one such as oncall@example.org")
    if not found:
        raise Bad(value.line, "expected at least one address")
    return found


def _ca_file(written: Written, value: Value | None) -> str:
    if value is None:
        return ""
    path = Path(written.text(value)).expanduser()
    if not path.is_file():
        raise Bad(value.line, f"there is no file {str(path)!r} of certificates")
    return str(path)
