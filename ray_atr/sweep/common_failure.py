"""When to give up: every trial so far failed for the same reason."""

from __future__ import annotations

from dataclasses import dataclass, field

ENOUGH = 3
"""Failed trials that show that the others would fail too."""


@dataclass
class CommonFailure:
    """Told what becomes of a sweep's trials, it knows the one reason for which all of them failed."""

    has_succeeded: bool = False
    """Whether a trial has its result, or was stopped for what it reached, in this session or an earlier one."""
    reasons: list[str] = field(default_factory=list)
    alive: set[str] = field(default_factory=set)
    """Trials that have reported an epoch and have not failed since."""

    def epoch_ended(self, trial_id: str) -> None:
        self.alive.add(trial_id)

    def trial_ended(self) -> None:
        self.has_succeeded = True

    def trial_failed(self, trial_id: str, error: str) -> None:
        self.alive.discard(trial_id)
        # A reason may name the trial's own files.
        self.reasons.append(error.replace(trial_id, "TRIAL"))

    @property
    def reason(self) -> str | None:
        """Why every trial failed; None while fewer than three have, one works, or the reasons differ."""
        if self.has_succeeded or self.alive or len(self.reasons) < ENOUGH or len(set(self.reasons)) > 1:
            return None
        return self.reasons[0]
