"""What a search may choose from: `objective.pair.transport_mass=uniform(0.3,1)`, parsed, checked and drawn from."""

from ray_atr.space.dimensions import Choice, Dimension, Grid, LogUniform, QUniform, RandInt, Uniform
from ray_atr.space.parsing import parse_dimension
from ray_atr.space.space import Point, Space, combinations, point_key

__all__ = [
    "Choice",
    "Dimension",
    "Grid",
    "LogUniform",
    "Point",
    "QUniform",
    "RandInt",
    "Space",
    "Uniform",
    "combinations",
    "parse_dimension",
    "point_key",
]
