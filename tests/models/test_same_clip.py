"""The same clip gives the same vector: alone, in any batch, behind other clips, on every device, and again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ray_atr.models.audio import SmallCnn
from ray_atr.models.ced import Ced, CedTower
from ray_atr.models.model_settings import ModelSettings
from ray_atr.models.resnet38 import ResNet38
from ray_atr.models.retriever import build_retriever
from ray_atr.models.text import SmallTransformer, train_tokenizer
from tests.support.pretend_device import pretend_device

TOWERS = {
    "small_cnn": SmallCnn(width=32, clip_seconds=4.0),
    "ced": Ced(size="tiny", num_blocks=1, checkpoint=None, clip_seconds=4.0),
    "resnet38": ResNet38(width_divisor=16, checkpoint=None, clip_seconds=4.0),
}
SECONDS = (9.0, 1.3, 4.0, 2.2, 9.0)
"""The first and the last are the same clip, longer than two windows."""


@pytest.fixture(params=TOWERS)
def retriever(request):
    settings = ModelSettings(audio=TOWERS[request.param], text=SmallTransformer(width=32), embedding_width=16)
    return build_retriever(settings, tokenizer=train_tokenizer(["a dog barks"] * 20, 300), seed=0)


@pytest.fixture
def clips(retriever):
    rate = retriever.audio_tower.front_end.sample_rate
    made = [np.random.default_rng(n).normal(0, 0.1, int(rate * s)).astype(np.float32) for n, s in enumerate(SECONDS)]
    return [*made[:-1], made[0]]


@pytest.mark.slow
def test_whatever_it_is_embedded_with(retriever, clips):
    alone = torch.cat([retriever.encode_audio(clip) for clip in clips])
    assert torch.equal(alone[0], alone[-1])
    assert (alone @ alone.T - torch.eye(len(clips))).abs().max() > 1e-3  # they are not all the same
    for batch_size in (1, 2, 3, 16):
        found = retriever.encode_audio(clips, batch_size=batch_size)
        torch.testing.assert_close(found, alone, atol=2e-6, rtol=0)
        assert float((found[0] * found[-1]).sum()) == pytest.approx(1, abs=1e-6)


def test_on_a_device_that_mixes_with_no_other(retriever, clips):
    expected = retriever.encode_audio(clips)
    if isinstance(retriever.audio_tower, CedTower):
        pytest.skip("inference mode refuses views of the pretend device's parameters")
    with pretend_device() as device:
        found = retriever.to(device).encode_audio(clips).cpu()
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu(retriever, clips):
    expected = retriever.encode_audio(clips)
    # By default convolutions round their inputs to TF32 there, and vectors differ by some 2e-4.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        found = retriever.cuda().encode_audio(clips)
    torch.testing.assert_close(found.cpu(), expected, atol=1e-5, rtol=0)
