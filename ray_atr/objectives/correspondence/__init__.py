"""Who is a true pair, and how far: one file a method, one line here."""

from ray_atr.objectives.correspondence.consensus import Consensus
from ray_atr.objectives.correspondence.correspondence import Correspondence, NoCorrespondence
from ray_atr.objectives.correspondence.estimator import Estimator, TrainingPairs
from ray_atr.objectives.correspondence.neighbours import NeighbourAgreement
from ray_atr.objectives.correspondence.oracle import Oracle
from ray_atr.objectives.correspondence.rematch import Rematch
from ray_atr.objectives.correspondence.self_refining import SelfRefining
from ray_atr.objectives.correspondence.small_loss import SmallLoss
from ray_atr.objectives.correspondence.teacher import Teacher, Teaching
from ray_atr.objectives.correspondence.transport import Transport

CORRESPONDENCES: dict[str, type[Correspondence]] = {
    method.name: method
    for method in (
        NoCorrespondence,
        Oracle,
        SmallLoss,
        SelfRefining,
        Consensus,
        NeighbourAgreement,
        Transport,
        Rematch,
        Teacher,
    )
}

__all__ = [
    "CORRESPONDENCES",
    "Consensus",
    "Correspondence",
    "Estimator",
    "NeighbourAgreement",
    "NoCorrespondence",
    "Oracle",
    "Rematch",
    "SelfRefining",
    "SmallLoss",
    "Teacher",
    "Teaching",
    "TrainingPairs",
    "Transport",
]
