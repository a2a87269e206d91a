"""Text towers, one file each; `TEXT_TOWERS` names them."""

from __future__ import annotations

from ray_atr.models.text.bert import Bert
from ray_atr.models.text.labse import Labse
from ray_atr.models.text.small_transformer import SmallTransformer
from ray_atr.models.text.sonar import Sonar
from ray_atr.models.text.transformers import TransformersText
from ray_atr.models.text.xlm_roberta import XlmRoberta
from ray_atr.models.tower import TextSettings

TEXT_TOWERS: dict[str, type[TextSettings]] = {
    SmallTransformer.name: SmallTransformer,
    Sonar.name: Sonar,
    Labse.name: Labse,
    Bert.name: Bert,
    XlmRoberta.name: XlmRoberta,
    TransformersText.name: TransformersText,
}
