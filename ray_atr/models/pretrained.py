"""Models of the transformers library from a local folder or the hub: only the library's code, safe weights, strict matching.

Here and in the towers, functions import transformers, because it takes a second and small towers do not need it.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ray_atr.common.settings import refuse
from ray_atr.models import laion_clap, ml_clap, weights
from ray_atr.models.onnx_graph import errors_alone
from ray_atr.models.weights import LoadReport, refusing, require_match

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "sentencepiece.bpe.model",
    "spiece.model",
    "tokenizer.model",
)


def read_model_config(checkpoint: str | os.PathLike[str], path: str, dropout: float | None = None) -> PreTrainedConfig:
    """The configuration of a checkpoint (folder or hub id, or a folder with LAION-CLAP's or ML-CLAP's `.pt`).

    `dropout` replaces every dropout; None: they stay. Layer dropping is always switched off: with sharded weights
    (`scaling.shard_towers`), all workers must compute the same layers.
    Raises ValueError if there is no readable configuration of a known architecture.
    """
    from transformers import AutoConfig, PreTrainedConfig

    require_name(checkpoint, path)
    if (lone := _lone_file(checkpoint)) is not None:
        config = lone.read_config(lone.file, path)
    else:
        with refusing(path, checkpoint, "a folder or hub id with the config.json of a model of transformers"):
            config = AutoConfig.from_pretrained(checkpoint, trust_remote_code=False)
    for part in (config, *(value for value in vars(config).values() if isinstance(value, PreTrainedConfig))):
        for name, value in vars(part).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                if "layerdrop" in name:
                    setattr(part, name, 0.0)
                elif "dropout" in name and dropout is not None:
                    setattr(part, name, dropout)
        if hasattr(part, "apply_spec_augment") or hasattr(part, "mask_time_prob"):
            # wav2vec 2.0's own masking draws from NumPy's global generator; `model.augment` is the one to use. Data2vec masks
            # unless its configuration has the switch, and by itself it has none.
            part.apply_spec_augment = False
    return config


def load_model(
    model_class: Any,
    checkpoint: str | os.PathLike[str],
    config: PreTrainedConfig,
    *,
    path: str,
    skip: tuple[str, ...],
    allowed: Iterable[str] | None,
    has_weights: bool = True,
    **arguments: Any,
) -> Any:
    """The model with the checkpoint's weights, float32 on the CPU; what was loaded is logged. Without `has_weights`, the model
    of the configuration alone.

    Names that start with one of `skip`, also after the library's own prefix, are ignored (heads of the task that it was trained
    on). Raises ValueError for other mismatches, and for a file that is cut off, missing or would run code.
    """
    if not has_weights:
        return model_class(config, **arguments)
    if (lone := _lone_file(checkpoint)) is not None:
        with torch.random.fork_rng():
            model = model_class(config).eval()
        # Constants, which files of some versions of transformers lack.
        constants = {n: value for n, value in model.state_dict().items() if n.endswith(("position_ids", "type_ids"))}
        tensors = constants | lone.named(weights.read_checkpoint(lone.file, path))
        weights.load_weights(model, tensors, source=str(lone.file), skip=lone.not_needed, allowed=allowed, path=path)
        return model
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    allowed_file = "a complete checkpoint of tensors that runs no code"
    # Its warnings repeat in forty lines what the report below says in one.
    with errors_alone("transformers"), refusing(path, checkpoint, allowed_file, pickle.UnpicklingError):
        model, info = model_class.from_pretrained(
            checkpoint,
            config=config,
            dtype=torch.float32,
            trust_remote_code=False,
            weights_only=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **arguments,
        )
    mis_shaped = {name: (tuple(stored), tuple(wanted)) for name, stored, wanted in info["mismatched_keys"]}
    missing = {*info["missing_keys"]} - {*mis_shaped}
    prefix = f"{model.base_model_prefix}."
    skipped = {name for name in info["unexpected_keys"] if name.removeprefix(prefix).startswith(skip)}
    report = LoadReport(
        source=str(checkpoint),
        loaded=tuple(name for name in model.state_dict() if name not in missing and name not in mis_shaped),
        missing=tuple(sorted(missing)),
        unexpected=tuple(sorted({*info["unexpected_keys"]} - skipped)),
        mis_shaped=mis_shaped,
        skipped=tuple(sorted(skipped)),
    )
    require_match(report, allowed, path)
    return model


def load_tokenizer(checkpoint: str | os.PathLike[str], config: PreTrainedConfig, path: str) -> PreTrainedTokenizerBase:
    """The checkpoint's tokeniser. Raises ValueError if it is missing, broken, or larger than the model's vocabulary."""
    from transformers import AutoTokenizer

    folder, lone = Path(checkpoint), _lone_file(checkpoint)
    if folder.is_dir() and not any((folder / name).is_file() for name in TOKENIZER_FILES):
        # Without this, transformers makes an empty vocabulary that turns every word into the unknown token.
        missing = f"its tokeniser ({', '.join(TOKENIZER_FILES[:4])})" if lone is None else lone.beside
        raise refuse(path, str(checkpoint), f"a folder with {missing}")
    how: dict[str, Any] = {}
    if lone is not None:
        how = {"config": lone.read_config(lone.file, path), "tokenizer_type": lone.tokenizer_type}
    with refusing(path, checkpoint, "a folder or hub id with a complete tokeniser", TypeError, ImportError):
        tokenizer = AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=False, **how)
    if len(tokenizer) > config.vocab_size:
        allowed = f"the tokeniser of this model; it has {len(tokenizer)} tokens, the model's table {config.vocab_size}"
        raise refuse(path, str(checkpoint), allowed)
    if tokenizer.pad_token_id is None:
        raise refuse(path, str(checkpoint), "a tokeniser with a padding token")
    return tokenizer


def read_feature_extractor(checkpoint: str | os.PathLike[str], path: str) -> Any:
    """The checkpoint's feature extractor, from its preprocessor_config.json; or LAION's for a `.pt` of LAION-CLAP.

    Raises ValueError if there is none.
    """
    from transformers import AutoFeatureExtractor

    require_name(checkpoint, path)
    file = laion_clap.laion_file(checkpoint)
    if file is not None and not (file.parent / "preprocessor_config.json").is_file():
        return laion_clap.laion_extractor(laion_clap.laion_config(file, path))
    with refusing(
        path, checkpoint, "a folder or hub id with a complete preprocessor_config.json", TypeError, ImportError
    ):
        return AutoFeatureExtractor.from_pretrained(checkpoint, trust_remote_code=False)


def encoder_class(config: PreTrainedConfig, path: str, classes: Mapping[str, Any], allowed: str) -> Any:
    """The class of an encoder with this configuration: one of `classes` by its type, or the library's."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    if config.model_type in classes:
        return classes[config.model_type]
    if type(config) in MODEL_MAPPING and not getattr(config, "is_encoder_decoder", False):
        return MODEL_MAPPING[type(config)]
    raise refuse(path, config.model_type, allowed)


def require_name(checkpoint: str | os.PathLike[str], path: str) -> None:
    """Raises ValueError for an empty checkpoint and for a path that does not exist."""
    text = str(checkpoint)
    is_path = text.startswith((".", "/", "~")) or text.count("/") > 1
    if not text or (is_path and not Path(text).expanduser().is_dir()):
        raise refuse(path, text, "a folder that exists, or a hub id owner/name")


class _LoneFile(NamedTuple):
    """One `.pt` in its authors' layout, and how it is read."""

    file: Path
    read_config: Callable[[Path, str], PreTrainedConfig]
    named: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    """Gives its tensors the names of transformers."""
    not_needed: tuple[str, ...]
    """Prefixes of tensors that its model does not need."""
    beside: str
    """A description of the tokeniser that must be in its folder."""
    tokenizer_type: str | None = None
    """That of the tokeniser, if the configuration does not decide it; the folder has no config.json."""


def _lone_file(checkpoint: str | os.PathLike[str]) -> _LoneFile | None:
    """ML-CLAP's, from which SONAR is read, or LAION-CLAP's; None for a folder or hub id in the layout of transformers."""
    if (file := ml_clap.ml_clap_file(checkpoint)) is not None:
        # SONAR has the encoder of M2M100, but the tokeniser of NLLB.
        return _LoneFile(
            file, ml_clap.sonar_config, ml_clap.sonar_tensors, ml_clap.NOT_NEEDED, ml_clap.NLLB_BESIDE, "nllb"
        )
    if (file := laion_clap.laion_file(checkpoint)) is not None:
        return _LoneFile(
            file, laion_clap.laion_config, laion_clap.laion_tensors, laion_clap.NOT_NEEDED, laion_clap.BESIDE
        )
    return None
