"""An upload is decoded within limits. These tests need no extra."""

from __future__ import annotations

import pytest

from ray_atr.deploy.serve.limits import ServerLimits
from ray_atr.deploy.serve.sounds import decode_upload
from tests.support.clips_on_disk import tone


def test_an_upload_is_read_within_the_seconds_that_are_set() -> None:
    assert len(decode_upload(tone(0.1), ServerLimits())[0]) == 1600
    with pytest.raises(ValueError, match="too long to read'; allowed at most 1e-09 s"):
        decode_upload(tone(0.1), ServerLimits(decode_seconds=1e-9))
    with pytest.raises(ValueError, match=r"allowed at most 0\.05 s"):
        decode_upload(tone(0.1), ServerLimits(most_seconds=0.05))
