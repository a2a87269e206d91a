"""Pages of one style that need no other file: templates filled in, everything escaped, pictures as data."""

from __future__ import annotations

import base64
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def render_template(template: str, **values: Any) -> str:
    """A template of `templates/` with these values; text is escaped, a value that is missing is an error."""
    environment = Environment(
        loader=PackageLoader("ray_atr.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)


def data_uri(png: bytes) -> str:
    """A picture as the address of an `<img>`."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")
