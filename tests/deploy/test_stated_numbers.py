"""The numbers that the pages on searching, exporting and packing state are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ray_atr.cli.serve import LEAST_TOKEN
from ray_atr.data.caption_sample import CLIPS
from ray_atr.deploy.export.options import ExportOptions
from ray_atr.deploy.index.build import PART_SECONDS
from ray_atr.deploy.index.current import URL_SECONDS
from ray_atr.deploy.index.search import MOST_ANSWERS
from ray_atr.deploy.index.structure import EXACT_ROWS, RANKED_AGAIN
from ray_atr.deploy.pack.fitting import MOST_WORDS
from ray_atr.deploy.serve.limits import ServerLimits
from ray_atr.evaluation.trec import DEPTH
from ray_atr.metrics.calibration import FEW_CLIPS
from ray_atr.metrics.nothing import FALSE_SHARE

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "said", "number"),
    [
        ("search", "a body of more than # MB", ServerLimits().most_megabytes),
        ("search", "# requests are waiting", ServerLimits().most_waiting),
        ("search", "as WAV, at most # s", ServerLimits().heard_seconds),
        ("search", "allowed 1 to #", MOST_ANSWERS),
        ("search", "a secret of # ASCII characters or more", LEAST_TOKEN),
        ("search", "fitted on fewer than # clips", FEW_CLIPS),
        ("search", "up to some # seconds before", PART_SECONDS),
        ("search", "(# s for an index at a URL)", URL_SECONDS),
        ("search", "exact on 16-bit codes up to # windows", EXACT_ROWS),
        ("search", "re-rank the best # results", RANKED_AGAIN),
        ("search", "#% of the texts whose clips are in the archive then find nothing", 100 * FALSE_SHARE),
        ("export", "more than `--tolerance` (#)", ExportOptions().tolerance),
        ("export", "hashes of up to # training clips", CLIPS),
        ("export", "if there were fewer than #.", FEW_CLIPS),
        ("export", "the # best clips of each caption", DEPTH),
        ("pack", "(# words at most", MOST_WORDS),
    ],
)
def test_a_stated_number_is_that_of_the_code(page: str, said: str, number: float) -> None:
    text = " ".join((DOCS / f"{page}.md").read_text(encoding="utf-8").split())
    before, after = map(re.escape, " ".join(said.split()).split("#"))
    (found,) = set(re.findall(rf"{before}(\d[\d,]*(?:e-\d+)?){after}", text))
    assert float(found.replace(",", "")) == pytest.approx(number)
