"""The workflow that publishes names the repository it runs in as the package's addresses."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]


def test_the_package_that_is_published_has_the_addresses_of_its_repository(tmp_path: Path) -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "publish.yml").read_text())
    steps = workflow["jobs"]["build"]["steps"]
    runs = [step.get("run", "") for step in steps]
    (naming,) = [index for index, run in enumerate(runs) if "project.urls" in run]
    assert naming < runs.index("uv build")
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    where = {"GITHUB_SERVER_URL": "https://git.example", "GITHUB_REPOSITORY": "who/what", "GITHUB_REF_NAME": "v9"}
    subprocess.run(["bash", "-euc", runs[naming]], cwd=tmp_path, env={**os.environ, **where}, check=True)
    assert tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]["urls"] == {
        "Source": "https://git.example/who/what",
        "Issues": "https://git.example/who/what/issues",
        "Changelog": "https://git.example/who/what/blob/v9/CHANGELOG.md",
    }
