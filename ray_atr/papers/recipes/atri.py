"""ATRI (Yin et al. 2025, ACL): CED-Base and a multilingual text encoder, trained in eight languages.

From section 5.3: Adam at 5e-6, 10 epochs, batches of 24, tau = 0.07 held fixed, the epoch of best recall kept. It
prints no schedule, so the rate is constant. Every model of the paper starts from the weights of ML-CLAP (Yan et al.
2024). To follow it, give the folder with its `.pt` and NLLB's tokeniser: `--train.start_from FOLDER`. Without one the
recipes start from the published towers and projections at random, for which this rate is small and ten epochs are few.

From the code of ML-CLAP: a shared width of 1,024 behind two layers with a ReLU, clips of at most 30 s, captions of at
most 50 tokens, in lower case and without punctuation. If the two disagree the paper is followed: that code learns the
temperature and adds a penalty on the embeddings' norms, which the paper's losses do not have. The paper's own code is
not public. Weight decay and clipping are not printed: none, and our default.
"""

from __future__ import annotations

from ray_atr.training.recipes.recipe import Recipe

ML_CLAP = Recipe(
    "AudioCaps in eight languages, one random language per clip and epoch (ATRI Eq. 4).",
    {
        "data.source": "data/audiocaps",
        "data.languages": "eng,fra,deu,spa,nld,cat,jpn,zho",
        # Eq. 9 and 13 have every other clip of the batch as a negative.
        "data.positives": "identity",
        "model.audio": "ced",
        "model.audio.size": "base",
        "model.audio.checkpoint": "mispeech/ced-base",
        "model.audio.clip_seconds": 30.0,
        "model.text": "sonar",
        "model.text.max_tokens": 50,
        "model.text.plain_words": True,
        "model.embedding_width": 1024,
        "model.projection": "mlp",
        "objective": "ml_clap",
        "train.epochs": 10,
        "train.batch_size": 24,
        "train.optimizer": "adam",
        "train.learning_rate": 5e-6,
        "train.schedule": "constant",
        "train.warmup_fraction": 0.0,
        "train.weight_decay": 0.0,
        "scaling.gpus_per_worker": 1.0,
        # The paper compares means over the languages.
        "evaluation.select_by": "text_to_audio/mean/recall_at_1",
    },
)
CACL = Recipe(
    "AudioCaps with audio and English as anchors of one random language (ATRI Eq. 12-13).",
    {"objective": "cacl"},
    ML_CLAP,
)
KCL = Recipe("AudioCaps with all eight languages of every clip at once (ATRI Eq. 9-11).", {"objective": "kcl"}, ML_CLAP)

CLOTHO = {"data.source": "data/clotho", "data.captions_per_epoch": "each"}
CLOTHO_ML_CLAP = Recipe(
    "Clotho in eight languages; its clips last 15 to 30 s, so CED encodes each in chunks of 10 s and averages them.",
    CLOTHO,
    ML_CLAP,
)
LABSE = {"model.text": "labse", "model.text.max_tokens": 50, "model.text.plain_words": True}

audiocaps_ced_sonar_ml_clap = ML_CLAP
audiocaps_ced_sonar_cacl = CACL
audiocaps_ced_sonar_kcl = KCL
clotho_ced_sonar_ml_clap = CLOTHO_ML_CLAP
clotho_ced_sonar_cacl = Recipe("Clotho with audio and English as anchors of one random language.", CLOTHO, CACL)
clotho_ced_sonar_kcl = Recipe("Clotho with all eight languages of every clip at once.", CLOTHO, KCL)
audiocaps_ced_labse_ml_clap = Recipe(
    "AudioCaps with LaBSE in SONAR's place (ATRI appendix B), one random language per clip and epoch.", LABSE, ML_CLAP
)
audiocaps_ced_labse_cacl = Recipe(
    "AudioCaps, LaBSE, with audio and English as anchors of one random language.", LABSE, CACL
)
audiocaps_ced_labse_kcl = Recipe("AudioCaps, LaBSE, with all eight languages of every clip at once.", LABSE, KCL)
