"""The cluster files are what Ray, KubeRay and bash accept, and fit this repository: versions, paths, scripts."""

from __future__ import annotations

import copy
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.support.shared_folder import SHARED

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "cluster"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
LAUNCHED = ("aws.yaml", "gcp.yaml", "on_premise.yaml")
KUBERAY = ("kuberay_cluster.yaml", "kuberay_job.yaml")


def load(name: str) -> dict[str, Any]:
    content = yaml.safe_load((CLUSTER / name).read_text())
    assert isinstance(content, dict)
    return content


def commands(config: dict[str, Any]) -> list[str]:
    return [line for key, lines in config.items() if key.endswith("_commands") for line in lines]


@pytest.mark.parametrize("name", LAUNCHED)
def test_ray_up_accepts(name, monkeypatch):
    """The same two steps with which `ray up` begins: fill in the provider's defaults, then check against Ray's schema."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(load(name))
    validate_config(config)
    assert config["head_node_type"] in config["available_node_types"]
    broken = {**config, "idle_timeout": 5}
    with pytest.raises(jsonschema.ValidationError):
        validate_config(broken)


@pytest.mark.parametrize("name", ["aws.yaml", "gcp.yaml"])
def test_clouds_have_autoscaled_spot_gpu_workers(name):
    config = load(name)
    worker = config["available_node_types"]["gpu_worker"]
    assert worker["resources"]["GPU"] >= 1
    assert worker["min_workers"] == 0 < worker["max_workers"] <= config["max_workers"]
    assert "spot" in str(worker["node_config"]).lower()
    assert "spot" not in str(config["available_node_types"]["head"]["node_config"]).lower()


@pytest.mark.parametrize(("name", "library"), [("aws.yaml", "boto3"), ("gcp.yaml", "google-api-python-client")])
def test_the_head_gets_the_library_without_which_ray_starts_no_workers(
    name: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.autoscaler._private.providers import _get_node_provider_cls

    for module in ("boto3", "googleapiclient"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=f"pip install {library}"):
        _get_node_provider_cls(load(name)["provider"])
    (line,) = load(name)["head_setup_commands"]
    assert line.endswith(f"--constraint ~/ray_atr/requirements.txt {library}")


@pytest.mark.parametrize("name", LAUNCHED)
def test_nodes_are_private_pinned_and_share_storage(name):
    config = load(name)
    lines = commands(config)
    wheel = f"ray_atr-{VERSION}-py3-none-any.whl"
    assert any(f"--requirement ~/ray_atr/requirements.txt ~/ray_atr/{wheel}" in line for line in lines)
    assert any("nvidia-smi" in line and "faiss-gpu==" in line for line in lines)
    assert any("mount -t nfs" in line for line in lines)
    starts = [line for line in lines if "ray start" in line]
    assert len(starts) == 2
    for line in starts:
        assert "RAY_AUTH_MODE=token" in line
        assert "RAY_ATR_HOME=/mnt/shared" in line
    (head,) = (line for line in starts if "--head" in line)
    assert "--dashboard-host=127.0.0.1" in head
    assert not any("0.0.0.0" in line for line in lines)
    assert "~/.ray/auth_token" in config["file_mounts"]
    for rule in config["provider"].get("security_group", {}).get("IpPermissions", []):
        assert (rule["FromPort"], rule["ToPort"]) == (22, 22)
        assert all(block["CidrIp"] != "0.0.0.0/0" for block in rule["IpRanges"])


@pytest.mark.parametrize("name", LAUNCHED)
def test_what_is_sent_to_nodes_exists_and_is_enough_to_install(name):
    sources = {path for path in load(name)["file_mounts"].values() if not path.startswith("~")}
    assert sources == {f"dist/ray_atr-{VERSION}-py3-none-any.whl", "dist/requirements.txt"}
    how = re.search(r"# Both made by: (.+)", (CLUSTER / name).read_text())
    assert how
    assert how[1] in (CLUSTER / "README.md").read_text()


POD = {
    "type": "object",
    "required": ["containers"],
    "additionalProperties": False,
    "properties": {
        "containers": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["name", "image", "resources"],
                "additionalProperties": False,
                "properties": {
                    "name": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"},
                    "image": {"type": "string"},
                    "env": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["name"],
                            "properties": {"name": {"type": "string"}, "value": {"type": "string"}},
                        },
                    },
                    "ports": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["containerPort"],
                            "additionalProperties": False,
                            "properties": {
                                "containerPort": {"type": "integer", "minimum": 1, "maximum": 65535},
                                "name": {"type": "string", "maxLength": 15, "pattern": "^[a-z0-9-]+$"},
                            },
                        },
                    },
                    "resources": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {
                            kind: {
                                "type": "object",
                                "additionalProperties": {"type": "string", "pattern": r"^\d+(\.\d+)?(m|[KMGT]i?)?$"},
                            }
                            for kind in ("requests", "limits")
                        },
                    },
                    "volumeMounts": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["name", "mountPath"],
                            "additionalProperties": False,
                            "properties": {"name": {"type": "string"}, "mountPath": {"type": "string"}},
                        },
                    },
                },
            },
        },
        "volumes": {"type": "array", "items": {"type": "object", "required": ["name"]}},
        "tolerations": {"type": "array"},
        "securityContext": {"type": "object"},
    },
}
TEMPLATE = {"type": "object", "required": ["spec"], "additionalProperties": False, "properties": {"spec": POD}}
START = {"type": "object", "additionalProperties": {"type": "string"}}
CLUSTER_SPEC = {
    "type": "object",
    "required": ["headGroupSpec", "rayVersion"],
    "additionalProperties": False,
    "properties": {
        "rayVersion": {"type": "string"},
        "authOptions": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"mode": {"enum": ["token", "disabled"]}},
        },
        "enableInTreeAutoscaling": {"type": "boolean"},
        "autoscalerOptions": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "idleTimeoutSeconds": {"type": "integer"},
                "upscalingMode": {"enum": ["Default", "Aggressive", "Conservative"]},
            },
        },
        "headGroupSpec": {
            "type": "object",
            "required": ["rayStartParams", "template"],
            "additionalProperties": False,
            "properties": {
                "serviceType": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
                "rayStartParams": START,
                "template": TEMPLATE,
            },
        },
        "workerGroupSpecs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["groupName", "rayStartParams", "template", "minReplicas", "maxReplicas"],
                "additionalProperties": False,
                "properties": {
                    "groupName": {"type": "string"},
                    "replicas": {"type": "integer", "minimum": 0},
                    "minReplicas": {"type": "integer", "minimum": 0},
                    "maxReplicas": {"type": "integer", "minimum": 0},
                    "rayStartParams": START,
                    "template": TEMPLATE,
                },
            },
        },
    },
}
JOB_SPEC = {
    "type": "object",
    "required": ["entrypoint", "rayClusterSpec"],
    "additionalProperties": False,
    "properties": {
        "entrypoint": {"type": "string"},
        "shutdownAfterJobFinishes": {"type": "boolean"},
        "ttlSecondsAfterFinished": {"type": "integer"},
        "backoffLimit": {"type": "integer"},
        "rayClusterSpec": CLUSTER_SPEC,
    },
}
"""The fields of `ray.io/v1` that these files use, by the API reference of KubeRay 1.6; unknown ones are refused."""


def kuberay_schema(kind: str) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "additionalProperties": False,
        "properties": {
            "apiVersion": {"const": "ray.io/v1"},
            "kind": {"const": kind},
            "metadata": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}},
            },
            "spec": {"RayCluster": CLUSTER_SPEC, "RayJob": JOB_SPEC}[kind],
        },
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", KUBERAY)
def test_kuberay_accepts(name):
    """Against KubeRay's own schema, which no Python package holds: it comes with the operator's chart."""
    crds = Path(os.environ.get("KUBERAY_CRDS", SHARED / "reference" / "kuberay_crds"))
    if not crds.is_dir():
        pytest.skip(
            f"needs {crds} (set RAY_ATR_SHARED), or KUBERAY_CRDS: the folder crds/ of the operator's Helm chart"
        )
    content = load(name)
    # A megabyte: in Python alone it takes seconds.
    definition = yaml.load((crds / f"ray.io_{content['kind'].lower()}s.yaml").read_text(), yaml.CSafeLoader)
    (version,) = (version for version in definition["spec"]["versions"] if version["name"] == "v1")
    # Without a check of the schema itself, which would take longer than all else.
    schema = without_unknown_fields(version["schema"]["openAPIV3Schema"])
    jsonschema.validators.validator_for(schema)(schema).validate(content)


def without_unknown_fields(schema: Any) -> Any:
    """The schema with every unknown field refused: Kubernetes drops them in silence."""
    if isinstance(schema, list):
        return [without_unknown_fields(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: without_unknown_fields(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        strict.setdefault("additionalProperties", False)
    return strict


def test_unknown_fields_are_refused_at_every_depth():
    metadata = {"type": "object"}
    inner = {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}}
    schema = without_unknown_fields({"type": "object", "properties": {"metadata": metadata, "ports": inner}})
    jsonschema.validate({"metadata": {"name": "x"}, "ports": [{"name": "y"}]}, schema)
    wrongs: tuple[dict[str, list[Any]], ...] = ({"port": []}, {"ports": [{"nam": "y"}]})
    for wrong in wrongs:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def cluster_spec(content: dict[str, Any]) -> dict[str, Any]:
    spec = content["spec"]
    return dict(spec["rayClusterSpec"] if content["kind"] == "RayJob" else spec)


def pods(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        yield group["template"]["spec"]


@pytest.mark.parametrize("name", KUBERAY)
def test_kuberay_fields_are_known_and_typed(name):
    content = load(name)
    schema = kuberay_schema(content["kind"])
    jsonschema.validate(content, schema)
    broken = copy.deepcopy(content)
    cluster_spec(broken)["headGroupSpec"]["rayStartParams"]["num-gpus"] = 0
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema)


@pytest.mark.parametrize("name", KUBERAY)
def test_pods_mount_what_they_declare_and_limit_what_they_request(name):
    for pod in pods(cluster_spec(load(name))):
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes
            assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/mnt/shared", "/dev/shm"}
            assert container["resources"]["requests"] == container["resources"]["limits"]
            assert {"name": "RAY_ATR_HOME", "value": "/mnt/shared"} in container["env"]
            assert container["image"] == f"<registry>/ray-atr:{VERSION}"
            # Ray's share of the pod's memory fits into the pod's shared memory.
            (shared,) = (int(v["emptyDir"]["sizeLimit"].removesuffix("Gi")) for v in pod["volumes"] if "emptyDir" in v)
            assert 0.3 * int(container["resources"]["limits"]["memory"].removesuffix("Gi")) < shared
        assert pod["securityContext"] == {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 1000}


def test_the_image_has_the_wheel_at_its_version_and_a_user_that_is_not_root():
    text = (CLUSTER / "Dockerfile").read_text()
    assert f"/dist/ray_atr-{VERSION}-py3-none-any.whl" in text
    assert re.findall(r"^USER (.+)$", text, re.M)[-1] == "1000"


@pytest.mark.parametrize("name", KUBERAY)
def test_kuberay_runs_the_locked_ray_and_bounds_its_groups(name):
    spec = cluster_spec(load(name))
    assert spec["rayVersion"] == importlib.metadata.version("ray")
    assert spec["authOptions"]["mode"] == "token"
    for group in spec["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_the_job_runs_a_pipeline_that_exists_and_resumes_its_own_run_folder():
    entrypoint = load("kuberay_job.yaml")["spec"]["entrypoint"]
    assert len(re.findall(r"ray-atr sweep noise --(?:out|resume)", entrypoint)) == 2
    made, resumed = (re.search(rf"--{word} (\S+)", entrypoint) for word in ("out", "resume"))
    assert made
    assert resumed
    assert made.group(1) == resumed.group(1)
    check_bash(entrypoint.split("'")[1])


def test_the_slurm_script_is_bash_and_uses_options_that_ray_has():
    script = (CLUSTER / "slurm.sh").read_text()
    check_bash(script)
    header = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    assert all(re.fullmatch(r"#SBATCH --[a-z-]+(=\S+)?", line) for line in header)
    from click.testing import CliRunner
    from ray.scripts.scripts import cli

    started = CliRunner().invoke(cli, ["start", "--help"]).output
    commands = script.replace("\\\n", "")
    of_ray = re.findall(r"(?:ray start|resources\+?=|ports=).*", commands)
    options = {option for line in of_ray for option in re.findall(r"--[a-z-]+", line)}
    assert len(options) == 13, options
    assert all(option in started for option in options)


SLURM_TOOLS = {
    "uv": "",
    "scontrol": "",
    "hostname": 'case "$1" in --ip-address) echo fd00::5 127.0.1.1;; *) echo 10.0.0.1 172.17.0.1;; esac',
    "ray": "echo $RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE >slow",
    "srun": "exec sleep 20",
    "pkill": "exit 1",
}


@pytest.fixture
def slurm_job(tmp_path):
    """Runs the script with stand-ins for the tools; `pipeline` is what its command does. Returns its process and their calls."""

    def run(
        pipeline: str = "exit 7", ended: str = "", **environment: str
    ) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        tools = tmp_path / "tools"
        tools.mkdir()
        python = f'case "$*" in pipelines/*) {pipeline};; *) sleep 0.2; exit {int(bool(ended))};; esac'
        broken = {ended: "exit 1"} if ended else {}
        for name, script in {**SLURM_TOOLS, "python": python, **broken}.items():
            call = f'echo "$(basename "$0") $*" >>{tmp_path}/called'
            (tools / name).write_text(f"#!/bin/bash\n{call}\n{script}\n")
            (tools / name).chmod(0o755)
        environment = {
            "PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_ID": "12", "SLURM_JOB_NUM_NODES": "2", "SLURMD_NODENAME": "n1",
            "SLURM_CPUS_PER_TASK": "8", "SLURM_SUBMIT_DIR": str(tmp_path), **environment,
        }  # fmt: skip
        command = ["bash", str(CLUSTER / "slurm.sh"), "--seeds", "0"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=20)
        assert not list(tmp_path.glob(".ray-token-*"))
        return done, (tmp_path / "called").read_text().splitlines()

    return run


@pytest.mark.parametrize("is_near_its_limit", [False, True])
def test_a_slurm_job_asks_to_be_queued_again_and_ends_as_its_sweep_did(slurm_job, is_near_its_limit):
    signal = "kill -USR1 $PPID; sleep 0.3; " if is_near_its_limit else ""
    done, called = slurm_job(f"{signal}exit 7")
    assert done.returncode == 7, done.stderr
    assert called[0] == "uv sync --frozen --no-dev --extra s3 --extra gcs"
    assert ("scontrol requeue 12" in called) == is_near_its_limit


def test_a_slurm_job_gives_ray_what_it_was_given_and_stops_no_other_ray(slurm_job, tmp_path):
    """Nodes may be shared with other jobs: neither their memory nor their GPUs nor their ports nor their Rays are this one's."""
    done, called = slurm_job(SLURM_GPUS_ON_NODE="2", SLURM_MEM_PER_NODE="1000")
    assert done.returncode == 7, done.stderr
    assert (tmp_path / "slow").read_text() == "1\n", "a small /dev/shm is no reason to refuse"
    head = next(call for call in called if call.startswith("ray start"))
    assert "--node-ip-address 10.0.0.1 --port 20048 --ray-client-server-port 20050 --dashboard-port 20051" in head, (
        "not the loopback address"
    )
    others = next(call for call in called if call.startswith("srun"))
    assert "--nodes=1 --ntasks=1 --exclude=n1 --cpus-per-task=8 ray start --address 10.0.0.1:20048" in others
    assert "--block" in others, "a step ends with its process"
    for started in (head, others):
        assert started.endswith(
            "--num-cpus 8 --num-gpus 2 --object-store-memory 314572800"
            " --dashboard-agent-listen-port 20049 --min-worker-port 0 --max-worker-port 0"
        )
    out = f"--out {tmp_path}/runs/sweep_noise-12"
    assert called.index(next(call for call in called if "ray.nodes()" in call)) < len(called) - 2
    assert called[-2:] == [
        f"python pipelines/sweep_noise.py --scaling.gpus_per_worker 1 {out} --seeds 0",
        "pkill -f /tmp/ray-12/",
    ]
    assert not any("stop" in call or "symmetric-run" in call for call in called)


@pytest.mark.parametrize("ended", ["ray", "srun"])
def test_a_slurm_job_whose_ray_does_not_start_waits_no_longer(slurm_job, ended):
    done, called = slurm_job(ended=ended)
    assert done.returncode == 1
    assert ("Ray did not start on all 2 nodes" in done.stdout) == (ended == "srun")
    assert not any("pipelines/" in call for call in called)


def test_a_slurm_job_on_one_node_without_gpus_claims_none_and_resumes(slurm_job, tmp_path):
    run = tmp_path / "runs" / "sweep_noise-12"
    run.mkdir(parents=True)
    (run / "sweep.json").touch()
    _, called = slurm_job(SLURM_JOB_NUM_NODES="1")
    assert not any(call.startswith("srun") for call in called)
    assert "--num-gpus 0" in next(call for call in called if call.startswith("ray start"))
    assert called[-2] == f"python pipelines/sweep_noise.py --resume {run} --seeds 0"


def test_the_readme_names_every_file_and_only_scripts_that_exist():
    text = (CLUSTER / "README.md").read_text()
    for path in CLUSTER.iterdir():
        assert path.name == "README.md" or path.name in text
    for script in re.findall(r"(?:pipelines|cluster)/[\w.]+", text):
        assert (ROOT / script).exists(), script


def check_bash(script: str) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash to check a script's syntax")
    result = subprocess.run([bash, "-n"], input=script, text=True, capture_output=True, check=False)
    assert result.returncode == 0, result.stderr
