"""How two sides are compared: one file a loss, one line here."""

from ray_atr.common.settings import by_name
from ray_atr.objectives.pairs.complementary import Complementary
from ray_atr.objectives.pairs.contrastive import Contrastive
from ray_atr.objectives.pairs.contrastive_entropic import ContrastiveEntropic
from ray_atr.objectives.pairs.learning_to_match import LearningToMatch
from ray_atr.objectives.pairs.m2m import M2M as M2M
from ray_atr.objectives.pairs.pair_loss import PAIRS
from ray_atr.objectives.pairs.pair_loss import CleanShare as CleanShare
from ray_atr.objectives.pairs.pair_loss import Comparison as Comparison
from ray_atr.objectives.pairs.pair_loss import PairLoss as PairLoss
from ray_atr.objectives.pairs.pair_loss import Terms as Terms
from ray_atr.objectives.pairs.partial_learning_to_match import PartialLearningToMatch
from ray_atr.objectives.pairs.sigmoid import Sigmoid
from ray_atr.objectives.pairs.triplet import Triplet

LOSSES = (
    Triplet,
    Contrastive,
    ContrastiveEntropic,
    Complementary,
    Sigmoid,
    LearningToMatch,
    PartialLearningToMatch,
    M2M,
)
PAIRS.update(by_name(LOSSES))
