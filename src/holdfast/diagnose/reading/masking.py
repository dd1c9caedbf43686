"""Secrets in a log stay in the log: tokens, keys and passwords are masked in everything that is shown or kept.

Sees        keys with a maker's prefix, passwords in addresses, values of names that speak of secrets, bearer tokens, signatures of signed addresses, private
            keys.
Is wrong    when a secret has no prefix and no name beside it. What only looks odd stays readable: hashes of commits and files, tensors, addresses, e-mail.
"""

from __future__ import annotations

import re
from typing import Final

MASKED: Final = "<secret>"

_PREFIXED: Final = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|api_org_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{18,}|sk-[\w-]{18,}|[sr]k_(?:live"
    r"|test)_\w{16,}|xox[abeoprs]-[\w-]{10,}"
    r"|A(?:KIA|SIA|GPA|ROA|IDA)[A-Z0-9]{16}(?![A-Z0-9])|AIza[\w-]{30,}|ya29\.[\w.-]{20,}|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{40,}|dop_v1_[a-f0-9]{40,}"
    r"|SG\.[\w-]{16,}\.[\w-]{16,}"
    r"|nvapi-[\w-]{30,}|r8_[A-Za-z0-9]{30,}|dckr_pat_[\w-]{20,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)
_BLOCK: Final = re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_KEY_LINE: Final = re.compile(r"^(?=[^\n]*[a-z])(?=[^\n]*[A-Z])(?=[^\n]*\d)[A-Za-z0-9+/]{60,}={0,2}$",
    re.MULTILINE)  # One line of a key whose frame was cut off.
_IN_ADDRESS: Final = re.compile(r"\b([a-z][a-z0-9+.-]{1,20}://)(?:([^\s/@:'\"]{1,100}):([^\s/@'\"]{1,200})|([^\s/@:'\"]{16,200}))@")
_HOOK: Final = re.compile(r"(hooks\.slack\.com/services/|discord(?:app)?\.com/api/webhooks/)[\w/-]+")
_BEARER: Final = re.compile(r"\b(Bearer|Basic|token|Token)(\s+)(?=[\w.~+/=-]{16,})(?=[^\s'\"]*\d)[\w.~+/=-]+")
_SIGNED: Final = re.compile(r"(?i)\b(X-Amz-(?:Signature|Credential|Security-Token)|X-Goog-Signature|AccountKey|SharedAccessKey|sig|signature"
    r"|awsaccesskeyid)(=)[^\s&'\";]{8,}")
_NAMED: Final = re.compile(
    r"(?i)(?<![A-Za-z])((?:[\w.-]{0,60}[_.-])?(?:password|passwd|passphrase|pwd|secret|api[_-]?key|apikey|access[_-]?key(?:[_-]?id)?|private[_-]?key"
    r"|secret[_-]?key|encryption[_-]?key|credentials?|auth[_-]?token"
    r"|access[_-]?token|refresh[_-]?token|session[_-]?token|id[_-]?token|hf[_-]?token|github[_-]?token|hub[_-]?token|security[_-]?token"
    r"|bot[_-]?token)['\"]?)(\s*[=:]\s*|\s+(?=[^\s=:]{8,}))(['\"]?)([^\s'\",;&}\])]{1,400})"
)  # fmt: skip
_TOKEN: Final = re.compile(r"(?i)(?<![A-Za-z_-])((?:[A-Z0-9]+_)?token['\"]?)(\s*[=:]\s*)(['\"]?)(?=[^\s'\",;&}]*\d)(?=[^\s'\",;&}]*[A-Za-z])([\w.~+/=-]{16,})")
_HARMLESS: Final = re.compile(r"(?i)none|null|true|false|unset|empty|missing|invalid|required|not|is|was|\*+|<[\w -]+>?|\$\{?\w+\}?|str|string|bool"
    r"|optional.*|…|\.{3}")
# What is looked for first, because it is quick: most lines hold none of it.
_MAKERS: Final = (
    "hf_", "api_org_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "sk-", "k_live_", "k_test_", "xox", "AKIA", "ASIA", "AGPA", "AROA",
    "AIDA", "AIza", "ya29.",
    "npm_", "pypi-", "dop_v1_", "SG.", "nvapi-", "r8_", "dckr_pat_", "eyJ",
)  # fmt: skip
_NAMES: Final = ("passw", "pwd", "passphrase", "secret", "key", "credential", "token")
_SIGNATURES: Final = ("signature", "x-amz-", "sig=", "sharedaccesskey", "accountkey", "awsaccesskeyid")


def without_secrets(text: str) -> str:
    """The text with every secret in it replaced by `<secret>`, and nothing else changed."""
    small = text.lower()
    if "-----BEGIN" in text:
        text = _BLOCK.sub(rf"\1\n{MASKED}\n\2", text)
    if "://" in text:
        text = _IN_ADDRESS.sub(lambda found: f"{found[1]}{found[2]}:{MASKED}@" if found[2] else f"{found[1]}{MASKED}@", text)
    if "hooks" in small:
        text = _HOOK.sub(rf"\1{MASKED}", text)
    if any(maker in text for maker in _MAKERS):
        text = _PREFIXED.sub(MASKED, text)
    if "bearer" in small or "basic " in small or "token " in small:
        text = _BEARER.sub(rf"\1\2{MASKED}", text)
    if any(name in small for name in _SIGNATURES):
        text = _SIGNED.sub(rf"\1\2{MASKED}", text)
    if any(name in small for name in _NAMES):
        text = _TOKEN.sub(rf"\1\2\3{MASKED}", _NAMED.sub(_named, text))
    if any(len(word) >= 60 for word in text.split()):
        text = _KEY_LINE.sub(MASKED, text)
    return text


def _named(found: re.Match[str]) -> str:
    name, between, quote, value = found.groups()
    if _HARMLESS.fullmatch(value):
        return found[0]
    if not between.strip() and not (name.startswith("-") or re.search(r"\d", value)):
        return found[0]  # "secret ingredients" is prose; "--api-key 1a2b…" is not.
    return f"{name}{between}{quote}{MASKED}"
