"""Text towers, one file each; `TEXT_TOWERS` names them."""

from __future__ import annotations

from ray_atr.models.text.small_transformer import SmallTransformer
from ray_atr.models.tower import TextSettings

TEXT_TOWERS: dict[str, type[TextSettings]] = {
    SmallTransformer.name: SmallTransformer,
}
