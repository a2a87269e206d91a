"""What the papers print, as reference beside our own numbers; never an expectation."""

from __future__ import annotations

from dataclasses import dataclass

M_LTM = "Luong et al. 2024 (m-LTM)"
ATRI = "Yin et al. 2025 (ATRI)"
ASK = "Fu et al. 2025 (ASK)"


@dataclass(frozen=True)
class Printed:
    """One printed result; recalls in percent, None where the paper prints none."""

    objective: str
    text_to_audio: float | None
    audio_to_text: float | None
    noise_ratio: float = 0.0
    rank_variance: float | None = None
    memory_mb: float | None = None
    seconds_per_epoch: float | None = None


@dataclass(frozen=True)
class PaperTable:
    """Printed results: where they stand (`table` is empty where only the paper is known) and on what they were measured."""

    name: str
    paper: str
    table: str
    setting: str
    rows: tuple[Printed, ...]


NOISE_TABLE = PaperTable(
    name="noise",
    paper=M_LTM,
    table="Table 5",
    setting="R@1 on AudioCaps with noisy training pairs, ResNet38 + BERT",
    rows=(
        Printed("triplet", 23.01, 28.52, noise_ratio=0.2),
        Printed("contrastive", 31.34, 40.12, noise_ratio=0.2),
        Printed("m_ltm", 35.51, 46.64, noise_ratio=0.2),
        Printed("m_ltm_pot", 35.92, 47.12, noise_ratio=0.2),
        Printed("triplet", 0.1, 1.25, noise_ratio=0.4),
        Printed("contrastive", 26.68, 34.69, noise_ratio=0.4),
        Printed("m_ltm", 32.58, 40.31, noise_ratio=0.4),
        Printed("m_ltm_pot", 33.64, 42.63, noise_ratio=0.4),
        Printed("triplet", 0.1, 0.1, noise_ratio=0.6),
        Printed("contrastive", 20.58, 27.37, noise_ratio=0.6),
        Printed("m_ltm", 25.26, 34.08, noise_ratio=0.6),
        Printed("m_ltm_pot", 27.73, 35.42, noise_ratio=0.6),
    ),
)

LANGUAGE_TABLE = PaperTable(
    name="languages",
    paper=ATRI,
    table="Tables 1-4",
    setting="AudioCaps, mean over 8 languages, CED-Base + SONAR",
    rows=(
        Printed("ml_clap", 44.84, 61.19, rank_variance=10.38, memory_mb=22172, seconds_per_epoch=3349),
        Printed("cacl", 46.03, 62.28, rank_variance=8.71, memory_mb=26788, seconds_per_epoch=3745),
        Printed("kcl", 46.81, 62.91, rank_variance=7.52, memory_mb=68256, seconds_per_epoch=4209),
    ),
)

KNOWLEDGE_TABLE = PaperTable(
    name="knowledge",
    paper=ASK,
    table="",
    setting="AudioCaps, ResNet38 + BERT",
    rows=(
        Printed("contrastive", None, 36.3),
        Printed("nnclr", None, 32.5),
        Printed("ask", 35.4, 42.0),
    ),
)

ZERO_SHOT_TABLE = PaperTable(
    name="zero_shot",
    paper=M_LTM,
    table="Table 3",
    setting="ESC-50 zero-shot after training on AudioCaps, accuracy",
    rows=(
        Printed("triplet", None, 71.25),
        Printed("contrastive", None, 72.25),
        Printed("m_ltm", None, 81.0),
    ),
)

PAPER_TABLES = (NOISE_TABLE, LANGUAGE_TABLE, KNOWLEDGE_TABLE, ZERO_SHOT_TABLE)
