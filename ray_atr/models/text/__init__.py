"""Text towers; `TEXT_TOWERS` names them."""

from __future__ import annotations

from ray_atr.models.text.small_transformer import SmallTransformer
from ray_atr.models.text.transformers import Bert, Labse, Sonar, TransformersText, XlmRoberta
from ray_atr.models.text.vectors import TextVectors
from ray_atr.models.tower import TextSettings

TEXT_TOWERS: dict[str, type[TextSettings]] = {
    tower.name: tower for tower in (SmallTransformer, Sonar, Labse, Bert, XlmRoberta, TransformersText, TextVectors)
}
