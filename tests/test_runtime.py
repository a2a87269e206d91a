"""Joining a cluster that is not there, what is said of the code, and how its commands are called."""

from __future__ import annotations

import copy
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import RayTaskError

from ray_atr.cli.parse import run_script
from ray_atr.common import runtime
from ray_atr.common.runtime import (
    PACKAGE,
    RayStartError,
    code_name,
    differences_of_code,
    home,
    require_answer,
    task_errors,
)
from tests.support.scripts import load_script


@pytest.mark.parametrize("prefix", ["", "ray://"])
def test_a_cluster_that_does_not_answer_is_named_at_once(prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"{prefix}127.0.0.1:{server.getsockname()[1]}"
        require_answer(address)
    # The error after which a command removes the run folder that it has made: the same command can be run again.
    with pytest.raises(RayStartError):
        require_answer(address)
    with pytest.raises(SystemExit):
        run_script(lambda: require_answer(address))
    assert f"RAY_ADDRESS: no Ray answers at {address} (Connection refused)" in capsys.readouterr().err


def test_the_address_of_a_dashboard_is_not_taken_for_a_clusters() -> None:
    """Ray's own pages have it exported, for `ray job submit`."""
    with pytest.raises(RayStartError, match=r"http://127.0.0.1:8265 is where `ray job submit` sends jobs"):
        require_answer("http://127.0.0.1:8265")


def test_a_cluster_at_an_ipv6_address_is_found() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        require_answer(f"[::1]:{server.getsockname()[1]}")


def test_a_machine_that_cannot_reach_itself_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would try for many minutes, and the machine would be called too busy."""
    runtime._require_loopback()
    monkeypatch.setattr(runtime, "LOOPBACK", "192.0.2.1")  # an address of no machine
    with pytest.raises(
        RayStartError, match=r"192.0.2.1: Ray cannot use the loopback network .*ip link set lo up.*--ray never"
    ):
        runtime._require_loopback()


@pytest.mark.parametrize(("share", "cpus"), [(0, 1), (1, 1), (3, 3)])
def test_a_container_with_half_a_cpu_has_one(share: int, cpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray rounds the share down: with 0 CPUs no trial would fit."""
    started: list[dict[str, Any]] = []
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray._private.utils.get_num_cpus", lambda **_: share)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(runtime, "_start_local", lambda **options: started.append(options))
    monkeypatch.setattr(runtime, "quiet_ray_data", lambda: None)
    runtime.start_ray()
    assert [options["num_cpus"] for options in started] == [cpus]


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (ValueError("train-0.parquet: missing"), "train-0.parquet: missing"),
        (FileNotFoundError(2, "No such file or directory", "a.wav"), "[Errno 2] No such file or directory"),
    ],
)
def test_an_error_on_another_node_names_it(cause: Exception, said: str) -> None:
    here = ray.util.get_node_ip_address()
    for address, where in ((here, ""), ("10.0.0.2", " (on the node 10.0.0.2)")):
        error = RayTaskError("job", f"ray::job() (pid=1, ip={address})", copy.copy(cause))
        with pytest.raises(type(cause)) as raised, task_errors():
            raise error.as_instanceof_cause()
        assert str(raised.value).removesuffix(": 'a.wav'") == said + where


def test_an_error_of_a_disk_in_a_task_keeps_the_name_of_its_file() -> None:
    """Ray Data appends its lines to an error's arguments; OSError takes the third one for the file."""
    told = "Failed to apply UDF transform after 1/1 attempts (total backoff 0.0s).\nTo change retry attempts, ..."
    for line, name in (("No space left on device: '/data/a'", "/data/a"), ("No space left on device", None)):
        text = f"ray::Map() (pid=1, ip=10.0.0.2)\nOSError: [Errno 28] {line}"
        error = RayTaskError("job", text, OSError(28, "No space left on device", told))
        with pytest.raises(OSError, match="No space left") as raised, task_errors():
            raise error.as_instanceof_cause()
        assert (raised.value.filename, raised.value.strerror) == (
            name,
            "No space left on device (on the node 10.0.0.2)",
        )


@pytest.mark.parametrize("address", ["", "auto", "local"])
def test_an_address_without_a_port_is_left_to_ray(address: str) -> None:
    require_answer(address)


def test_a_home_in_a_store_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_ATR_HOME", "s3://bucket/home")
    with pytest.raises(ValueError, match="RAY_ATR_HOME: got 's3://bucket/home'; allowed a folder of this machine"):
        home()
    monkeypatch.setenv("RAY_ATR_HOME", f"file://{tmp_path}")
    assert home() == tmp_path.resolve()


def test_a_submitted_job_of_a_user_without_a_home_is_told_where_to_write(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its runs would be in the folder that Ray deletes with the job."""
    copied = tmp_path / "working_dir_files" / "_ray_pkg_0"
    copied.mkdir(parents=True)
    monkeypatch.chdir(copied)
    monkeypatch.delenv("RAY_ATR_HOME", raising=False)
    monkeypatch.setenv("RAY_JOB_ID", "01000000")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert home() == tmp_path / "ray_atr"
    # As the command sets it.
    monkeypatch.setenv("HOME", str(copied))
    with pytest.raises(
        ValueError, match="RAY_ATR_HOME: got 'nothing'; allowed a folder that stays: this user has no home"
    ):
        home()


def test_a_user_without_a_home_has_a_ray_with_a_token_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray keeps its token there, and does not start if it cannot."""
    # Both are as they were when the test ends.
    for variable in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(tmp_path))
    runtime._give_token()
    assert "RAY_AUTH_TOKEN" not in os.environ
    (tmp_path / "no_home").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "no_home"))
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "mine")
    runtime._give_token()
    assert "RAY_AUTH_TOKEN" not in os.environ
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    runtime._give_token()
    token = os.environ["RAY_AUTH_TOKEN"]
    assert len(token) == 64
    runtime._give_token()
    assert os.environ["RAY_AUTH_TOKEN"] == token


@pytest.fixture
def installed(tmp_path: Path) -> Any:
    """`runtime` of some files of the package in a folder of a repository that does not track them, as a wheel is in a venv."""
    place = tmp_path / "venv" / "ray_atr"
    for name in ("__init__.py", "cli/__init__.py", "cli/commands.py", "common/runtime.py"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PACKAGE / name, place / name)
    (tmp_path / ".gitignore").write_text("venv/")
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "mine"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True, capture_output=True)
    return load_script(str(place / "common" / "runtime.py"))


def test_a_repository_around_an_installed_package_is_not_its_own(installed: Any, tmp_path: Path) -> None:
    version = installed.code_version()
    assert version["git_commit"] == "unknown"
    assert code_name(version) == f"files {version['code_digest']}"
    subprocess.run(["git", "add", "--force", "venv"], cwd=tmp_path, check=True)
    installed.git_commit.cache_clear()
    assert installed.code_version()["git_commit"].endswith("-dirty")


def test_the_digest_is_of_every_file_and_of_its_place(installed: Any) -> None:
    first, folder = installed.code_digest(), installed.PACKAGE
    (folder / "notes.txt").write_text("not code")
    installed.code_digest.cache_clear()
    assert installed.code_digest() == first
    text = (folder / "cli" / "commands.py").read_text()
    for change in (lambda: (folder / "cli" / "commands.py").write_text(text + "#"),
                   lambda: (folder / "cli" / "__init__.py").rename(folder / "cli" / "_init.py")):  # fmt: skip
        change()
        installed.code_digest.cache_clear()
        assert installed.code_digest() != first
        first = installed.code_digest()


def test_the_files_decide_whether_code_is_the_same() -> None:
    was = {"code": {"code_digest": "1", "git_commit": "a"}}
    assert differences_of_code(was, {"code_digest": "1", "git_commit": "unknown"}) == []
    assert differences_of_code(was, {"code_digest": "2", "git_commit": "a"}) == ["code_digest was 1, is 2"]
    assert differences_of_code({"code": {"git_commit": "a"}}, {"git_commit": "b"}) == ["git_commit was a, is b"]


def test_commands_are_named_as_the_reader_can_call_them(installed: Any) -> None:
    assert not installed.is_a_clone()
    assert installed.train_words() == ["ray-atr", "train"]
    (installed.PACKAGE.parent / "pyproject.toml").write_text('[project]\nname = "ray_atr"\n')
    assert installed.train_words() == ["uv", "run", "python", "pipelines/train.py"]
