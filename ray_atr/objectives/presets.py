"""The papers' systems, as named points of the grid scheme x pair loss x knowledge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ray_atr.objectives.knowledge.ance import Ance
from ray_atr.objectives.knowledge.ask import Ask
from ray_atr.objectives.knowledge.knowledge import Knowledge
from ray_atr.objectives.knowledge.moco import Moco
from ray_atr.objectives.knowledge.nnclr import Nnclr
from ray_atr.objectives.objective import Objective
from ray_atr.objectives.pairs import (
    Contrastive,
    ContrastiveEntropic,
    LearningToMatch,
    PairLoss,
    PartialLearningToMatch,
    Triplet,
)
from ray_atr.objectives.schemes import Cacl, English, Kcl, MlClap, Scheme
from ray_atr.settings import nearest, refuse


@dataclass(frozen=True)
class Preset:
    """A system under its name, and how tables and figures show it; the order of PRESET_TABLE is theirs too."""

    name: str
    objective: Objective
    paper: str
    colour: str
    marker: str


M_LTM = "Luong et al. 2024"
ATRI = "Yin et al. 2025"
ASK = "Fu et al. 2025"


def _m_ltm(name: str, pair: PairLoss, colour: str, marker: str) -> Preset:
    return Preset(name, Objective(scheme=English(), pair=pair), M_LTM, colour, marker)


def _ask(name: str, knowledge: Knowledge, colour: str, marker: str) -> Preset:
    return Preset(name, Objective(scheme=English(), pair=Contrastive(), knowledge=knowledge), ASK, colour, marker)


def _atri(name: str, scheme: Scheme, colour: str, marker: str) -> Preset:
    return Preset(name, Objective(scheme=scheme, pair=Contrastive()), ATRI, colour, marker)


# Colours of Okabe and Ito's and Tol's palettes, without their yellows (too light for a line on white). Each system keeps its
# own in every figure, and no two share one, so that bars can be told apart as well as lines.
PRESET_TABLE = (
    # English, under noisy pairs.
    _m_ltm("triplet", Triplet(), "#7f7f7f", "v"),
    _m_ltm("contrastive", Contrastive(), "#0072B2", "o"),
    _m_ltm("contrastive_entropic", ContrastiveEntropic(), "#332288", "D"),
    # The paper's M: full, learnt, projected to the positive semi-definite cone. Then the metrics that it is compared with.
    _m_ltm("m_ltm", LearningToMatch(), "#E69F00", "s"),
    _m_ltm("m_ltm_euclidean", LearningToMatch(metric="euclidean"), "#8C6D1F", "s"),
    _m_ltm("m_ltm_factored", LearningToMatch(metric="factored"), "#C49A6C", "s"),
    _m_ltm("m_ltm_pot", PartialLearningToMatch(), "#D55E00", "^"),
    _m_ltm("m_ltm_pot_euclidean", PartialLearningToMatch(metric="euclidean"), "#8B2E16", "^"),
    _m_ltm("m_ltm_pot_factored", PartialLearningToMatch(metric="factored"), "#F2A07B", "^"),
    # How eight languages share one audio encoder.
    _atri("ml_clap", MlClap(), "#56B4E9", "p"),
    _atri("cacl", Cacl(), "#CC79A7", "D"),
    _atri("kcl", Kcl(), "#009E73", "P"),
    # The baselines of its Appendix E, and a knowledge base that refreshes itself.
    _ask("moco", Moco(), "#999933", "o"),
    _ask("nnclr", Nnclr(), "#44AA99", "o"),
    _ask("ance", Ance(), "#000000", "o"),
    _ask("ask", Ask(), "#882255", "X"),
)
PRESETS: dict[str, Objective] = {one.name: one.objective for one in PRESET_TABLE}


def preset(name: str, **settings: Any) -> Objective:
    """A paper's objective by name, with any of its settings changed: `preset("m_ltm_pot", transport_mass=0.8)`.

    Raises ValueError if the name or a setting is unknown, naming the nearest.
    """
    if name not in PRESETS:
        raise refuse("preset", name, "one of " + ", ".join(PRESETS), nearest(name, PRESETS))
    return PRESETS[name].with_settings(**settings)
