"""What the tests of figures share."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that would be saved: to write a picture takes most of the time."""
    found: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *arguments, **options: found.append(figure))
    return found
