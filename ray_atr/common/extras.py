"""Optional libraries, by the extra of this package that brings them."""

from __future__ import annotations

import importlib.util

from ray_atr.common.settings import refuse


def require_extra(module: str, extra: str, what: str) -> None:
    """ValueError unless a library is installed; `what` is what was asked for."""
    if importlib.util.find_spec(module) is None:
        raise refuse(what, f"no {module} installed", f"with the extra: pip install 'ray_atr[{extra}]'")
