"""docs/search.md's lines for other tools find what the index finds, in processes that never import this package.

The tools are in the group `reference`: bash .ci/run reference
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ray_atr.deploy.index.build import build_index
from ray_atr.deploy.index.opened import Index
from tests.support.archives import make_tones, save_retriever

PAGE = Path(__file__).parents[2] / "docs" / "search.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
READING = next(block for block in BLOCKS if block.startswith("import pyarrow"))
TOOLS = ("duckdb", "lancedb", "qdrant_client", "pymilvus")


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_finds_what_the_index_finds(tool: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(tool) is None:
        pytest.skip(f"{tool} is not installed")
    retriever = save_retriever(tmp_path / "model")
    make_tones(tmp_path / "audio")
    build_index(str(tmp_path / "model"), str(tmp_path / "audio"), str(tmp_path / "mine.index"))
    query = retriever.encode_text(["a low tone"])[0].tolist()
    (block,) = [block for block in BLOCKS if block.startswith((f"import {tool}", f"from {tool}"))]
    shown = "import sys; assert 'ray_atr' not in sys.modules; print(nearest)"
    code = f"query = {query}\n{READING}\n{block}\n{shown}\n"
    said = subprocess.run([sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr[-2000:]
    own = Index.open(tmp_path / "mine.index").search("a low tone", top=10)
    # The scores are of 16-bit rows everywhere; equal ones may change places.
    assert set(eval(said.stdout.splitlines()[-1])) == {(one.path, one.start) for one in own}
