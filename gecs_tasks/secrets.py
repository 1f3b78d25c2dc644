"""Which settings are secrets: they are never printed, stored or passed on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_ENDINGS: Final = ("key", "token", "secret", "password", "authorization", "credentials")
_IN_URL: Final = re.compile(
    r"\w+://(?:[^/@\s]*:[^/@\s]*@|.*[?&][^=&]*(?:key|token|secret|password|signature|sig)=)", re.I
)
# Settings of models and tokenizers that end like a secret and are none.
_HARMLESS: Final = ("pad_token", "eos_token", "bos_token", "unk_token", "sep_token", "think_end_token", "add_bos_token")


def is_secret(name: str) -> bool:
    """Whether a setting's name says that its value is a key, a token or a password."""
    plain = name.lower().replace("-", "_")
    return plain.endswith(_ENDINGS) and plain not in _HARMLESS


def has_secret(value: Any) -> bool:
    """Whether a value is an address with a password or a key in it."""
    return isinstance(value, str) and _IN_URL.match(value) is not None


def secret_names(settings: Any) -> Iterator[str]:
    """The names of all secrets in a mapping, however deep, or in a ``key=value,...`` text."""
    if isinstance(settings, str):
        settings = dict.fromkeys(part.split("=", 1)[0].strip() for part in settings.split(",") if "=" in part)
    if isinstance(settings, Mapping):
        for name, value in settings.items():
            if is_secret(str(name)):
                yield repr(str(name))
            elif has_secret(value):
                yield f"a password or key in {name!r}"
            elif isinstance(value, (Mapping, list)):
                yield from secret_names(value)
    elif isinstance(settings, list):
        for value in settings:
            if isinstance(value, Mapping):
                yield from secret_names(value)
