"""What one setting may be in a space: all or one of some values, or a number of a range."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

SIGNIFICANT_DIGITS = 6
"""Of a drawn number: enough for any setting, and short enough to be typed again."""


@dataclass(frozen=True)
class Grid:
    """Every one of these values."""

    values: tuple[Any, ...]

    def draw(self, random_numbers: random.Random) -> Any:
        return random_numbers.choice(self.values)

    @property
    def probes(self) -> tuple[Any, ...]:
        """Values that are allowed only if all values of the dimension are."""
        return self.values

    def __str__(self) -> str:
        return f"{name_of(self)}({','.join(map(_written, self.values))})"


@dataclass(frozen=True)
class Choice(Grid):
    """One of these values, none nearer to another."""


@dataclass(frozen=True)
class Uniform:
    """A number between two, ends included, each as likely."""

    low: float
    high: float

    @property
    def values(self) -> tuple[Any, ...]:
        """None: a range is not listed."""
        return ()

    def draw(self, random_numbers: random.Random) -> Any:
        return self.fit(random_numbers.uniform(self.low, self.high))

    def fit(self, number: float) -> Any:
        """The number of this dimension nearest to one that is about in it."""
        return min(max(_rounded(number), self.low), self.high)

    @property
    def probes(self) -> tuple[Any, ...]:
        # A number between the ends finds the setting that takes whole numbers only.
        return self.low, self.high, self.low + (self.high - self.low) / math.pi

    def __str__(self) -> str:
        return f"{name_of(self)}({self.low:g},{self.high:g})"


@dataclass(frozen=True)
class LogUniform(Uniform):
    """A positive number between two, each ratio as likely."""

    def draw(self, random_numbers: random.Random) -> Any:
        return self.fit(math.exp(random_numbers.uniform(math.log(self.low), math.log(self.high))))


@dataclass(frozen=True)
class RandInt(Uniform):
    """A whole number between two, both included."""

    def draw(self, random_numbers: random.Random) -> Any:
        return random_numbers.randint(int(self.low), int(self.high))

    def fit(self, number: float) -> Any:
        return int(min(max(round(number), self.low), self.high))

    @property
    def probes(self) -> tuple[Any, ...]:
        return int(self.low), int(self.high)


@dataclass(frozen=True)
class QUniform(Uniform):
    """A number between two in steps from the lower: low, low + step, ..., at most high."""

    step: float

    def draw(self, random_numbers: random.Random) -> Any:
        return self._at(random_numbers.randint(0, self.num_steps))

    def fit(self, number: float) -> Any:
        return self._at(min(max(round((number - self.low) / self.step), 0), self.num_steps))

    @property
    def num_steps(self) -> int:
        return math.floor((self.high - self.low) / self.step + 1e-9)

    @property
    def probes(self) -> tuple[Any, ...]:
        return tuple(self._at(number) for number in sorted({0, 1, self.num_steps}))

    def _at(self, number: int) -> float:
        return _rounded(self.low + number * self.step)

    def __str__(self) -> str:
        return f"{name_of(self)}({self.low:g},{self.high:g},{self.step:g})"


Dimension = Grid | Uniform
"""What a setting may be: every, or one, of some values; or a number of a range."""

DIMENSIONS: dict[str, type[Grid] | type[Uniform]] = {
    "grid": Grid,
    "choice": Choice,
    "uniform": Uniform,
    "loguniform": LogUniform,
    "quniform": QUniform,
    "randint": RandInt,
}
FORMS = (
    "grid(VALUE,...), choice(VALUE,...), uniform(LOW,HIGH), loguniform(LOW,HIGH), quniform(LOW,HIGH,STEP) "
    "or randint(LOW,HIGH)"
)


def name_of(dimension: Dimension) -> str:
    """The word that a dimension is written with."""
    return next(name for name, kind in DIMENSIONS.items() if kind is type(dimension))


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}'" if isinstance(value, str) and "," in value else str(value)


def _rounded(number: float) -> float:
    return float(f"{number:.{SIGNIFICANT_DIGITS}g}")
