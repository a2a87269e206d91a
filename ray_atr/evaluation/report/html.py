"""Self-contained pages: rendered templates, with all text escaped, and pictures and sounds as data URLs."""

from __future__ import annotations

import base64
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

SOUNDS = {b"RIFF": "audio/wav", b"fLaC": "audio/flac", b"OggS": "audio/ogg", b"ID3": "audio/mpeg"}
"""First bytes of an encoded sound -> what a browser calls its kind."""
KINDS = {**SOUNDS, b"\x89PNG": "image/png"}


def render_template(template: str, *, package: str = "ray_atr.evaluation.report", **values: Any) -> str:
    """A template of a package's `templates/` with these values; text is escaped, a value that is missing is an error."""
    return _environment(package).get_template(template).render(**values)


@cache
def _environment(package: str) -> Environment:
    """Cached, since it holds the compiled templates."""
    return Environment(
        loader=PackageLoader(package, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def data_url(content: bytes) -> str:
    """A picture (PNG) or an encoded sound as a URL that needs no file."""
    kind = next((kind for start, kind in KINDS.items() if content.startswith(start)), "audio/mpeg")
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
