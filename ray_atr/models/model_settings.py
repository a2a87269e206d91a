"""The settings of a model: its two towers, how their embeddings are computed, and how they are compared."""

from __future__ import annotations

from dataclasses import dataclass

from ray_atr.common.settings import Settings, refuse, setting
from ray_atr.models.audio import AUDIO_TOWERS, SmallCnn
from ray_atr.models.augment import SpecAugment
from ray_atr.models.text import TEXT_TOWERS, SmallTransformer
from ray_atr.models.tower import AudioSettings, TextSettings


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Settings):
    """The two towers, and how their embeddings are computed and compared."""

    audio: AudioSettings = setting(default_factory=SmallCnn, help="audio tower", variants=AUDIO_TOWERS)
    text: TextSettings = setting(default_factory=SmallTransformer, help="text tower", variants=TEXT_TOWERS)
    embedding_width: int = setting(128, "width D of the space that audio and text share", at_least=2, at_most=2**14)
    projection: str = setting(
        "linear",
        "from a tower to the shared space: one linear layer, two (two_linear), or two with a ReLU between (mlp; "
        "wide_mlp has at least 512 numbers there)",
        choices=("linear", "two_linear", "mlp", "wide_mlp"),
    )
    audio_projection: str = setting(
        "same",
        "same: the audio side has the text side's kind of projection; none: the audio tower's vectors are only brought to unit "
        "norm, so texts are fitted to an existing space (the tower's width is embedding_width)",
        choices=("same", "none"),
    )
    interaction: str = setting(
        "global",
        "how a clip and a text are compared: global, by one embedding each; late, audio frames with text tokens, whose mean "
        "is then the one embedding of a clip or text",
        choices=("global", "late"),
    )
    windows: str = setting(
        "mean",
        "how a clip longer than the front end's clip_seconds is encoded: cut to one window, or in windows over all "
        "of it, whose embeddings are pooled by their mean, their maximum, or attention (a softmax of their "
        "products with a query, which is their mean plus a learned vector); training draws windows at random "
        "(windows_in_training). Late interaction always cuts",
        choices=("cut", "mean", "max", "attention"),
    )
    windows_in_training: int | None = setting(
        None,
        "windows of a long clip that a training step encodes and pools; none: 1, or 2 with attention, whose query "
        "is learned from how they differ (with 1 the query is their mean alone)",
        at_least=1,
        at_most=10_000,
    )
    augment: SpecAugment = setting(default_factory=SpecAugment, help="bands of the training clips that are blanked out")
    learn_temperature: bool = setting(
        False, "learn the temperature of a pair loss that has one, also where the loss itself keeps it constant"
    )
    initial_temperature: float | None = setting(
        None, "first value of a temperature that is learned (no other is changed); none: the pair loss's own", above=0
    )

    def require_width(self, audio_width: int) -> None:
        """ValueError if the audio tower's vectors, of this width, have no projection and are not of the shared space's width."""
        if self.audio_projection == "none" and audio_width != self.embedding_width:
            allowed = f"{audio_width}, the audio tower's width, with model.audio_projection=none"
            raise refuse("model.embedding_width", self.embedding_width, allowed)

    @property
    def is_late(self) -> bool:
        """Whether audio frames are compared with text tokens."""
        return self.interaction == "late"

    @property
    def pools_windows(self) -> bool:
        """Whether a long clip is encoded in windows over all of it."""
        return self.windows != "cut" and not self.is_late

    @property
    def training_windows(self) -> int:
        """Most windows of a clip in a training step."""
        if not self.pools_windows:
            return 1
        return self.windows_in_training or (2 if self.windows == "attention" else 1)

    @property
    def encoded_each_batch(self) -> dict[str, str]:
        """The frozen towers (audio, text) whose pooled vectors cannot be cached, and the reason."""
        frozen = [kind for kind in ("audio", "text") if getattr(self, kind).adapt.is_frozen]
        if self.is_late:
            return dict.fromkeys(frozen, "model.interaction=late compares its tokens")
        if self.augment.is_active and "audio" in frozen:
            return {"audio": "model.augment changes its input in every epoch"}
        return {}

    def encodes_once(self, kind: str) -> bool:
        """Whether a tower (audio or text) is frozen, and its pooled vectors can be cached for every epoch."""
        return getattr(self, kind).adapt.is_frozen and kind not in self.encoded_each_batch
