"""Audio towers, one file each; `AUDIO_TOWERS` names them."""

from __future__ import annotations

from ray_atr.models.audio.ast import Ast
from ray_atr.models.audio.ced import Ced
from ray_atr.models.audio.htsat import Htsat
from ray_atr.models.audio.resnet38 import ResNet38
from ray_atr.models.audio.small_cnn import SmallCnn
from ray_atr.models.audio.transformers import TransformersAudio
from ray_atr.models.tower import AudioSettings

AUDIO_TOWERS: dict[str, type[AudioSettings]] = {
    SmallCnn.name: SmallCnn,
    Ced.name: Ced,
    ResNet38.name: ResNet38,
    Htsat.name: Htsat,
    Ast.name: Ast,
    TransformersAudio.name: TransformersAudio,
}
