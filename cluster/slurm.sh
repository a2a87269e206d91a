#!/bin/bash
#SBATCH --job-name=ray-atr
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --signal=B:USR1@300
#SBATCH --output=ray-atr-%j.log
#SBATCH --open-mode=append
#
# A sweep over the nodes of one allocation:  sbatch cluster/slurm.sh --recipe quickstart --seeds 0 1 2
# Submit from the repository, on a file system that all nodes share. Five minutes before the time limit the job asks to be queued
# again, as Slurm itself does only after a preemption or a lost node; a requeued job resumes where it stopped.
# What follows the script's name goes to PIPELINE (default sweep_noise). Without GPUs: sbatch --gpus-per-node=0 cluster/slurm.sh
set -euo pipefail

pipeline=${PIPELINE:-sweep_noise}
root=${SLURM_SUBMIT_DIR:-$PWD}
run_folder=${RUN_FOLDER:-$root/runs/$pipeline-$SLURM_JOB_ID}

cd "$root"
# Once, before the nodes start: the committed lock file decides every version.
uv sync --frozen --no-dev --extra s3 --extra gcs
export PATH=$root/.venv/bin:$PATH

# This script runs on the first node, which is Ray's head. A host's name may have the loopback address, or one of IPv6 first.
head_address=$(echo "$(hostname --ip-address)" "$(hostname --all-ip-addresses)" | tr ' ' '\n' |
    awk '/^[0-9.]+$/ && !/^127\./ && !found++')
# Ports that differ from job to job, as nodes may be shared. Workers take any free ones.
port=$((20000 + 4 * (SLURM_JOB_ID % 2500)))

# Every node must show this token; the file is readable by its owner only and is on the shared file system.
export RAY_AUTH_MODE=token
export RAY_AUTH_TOKEN_PATH=$root/.ray-token-$SLURM_JOB_ID
(umask 077 && head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$RAY_AUTH_TOKEN_PATH")

export RAY_ATR_HOME=$root
# Socket names have a short limit, and node-local temporary folders are often long.
export RAY_TMPDIR=/tmp/ray-$SLURM_JOB_ID
# Not `ray stop`, which stops all of the user's Rays on the node: those of other jobs too.
end() {
    rm -f "$RAY_AUTH_TOKEN_PATH"
    kill $(jobs -rp) 2>/dev/null || true
    # Ray's GCS may wait for ever for processes that have ended before it.
    pkill -f "$RAY_TMPDIR/" && sleep 5 && pkill -KILL -f "$RAY_TMPDIR/" || true
}
trap end EXIT

gpus=${SLURM_GPUS_ON_NODE:-0}
resources=(--num-cpus "$SLURM_CPUS_PER_TASK" --num-gpus "$gpus")
ports=(--dashboard-agent-listen-port $((port + 1)) --min-worker-port 0 --max-worker-port 0)
if [ -n "${SLURM_MEM_PER_NODE:-}" ]; then
    # Ray's own share, but of the job's memory (MiB) instead of the node's.
    resources+=(--object-store-memory $((SLURM_MEM_PER_NODE * 1024 * 1024 * 3 / 10)))
    # As with its own share, Ray uses its temporary folder if /dev/shm is too small, instead of refusing more than 10 GB.
    export RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE=1
fi

# Not `ray symmetric-run`, which refuses a node on which another Ray runs, and ends with `ray stop`.
ray start --head --node-ip-address "$head_address" --port "$port" \
    --ray-client-server-port $((port + 2)) --dashboard-port $((port + 3)) "${resources[@]}" "${ports[@]}"
export RAY_ADDRESS=$head_address:$port
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    others=$((SLURM_JOB_NUM_NODES - 1))
    # Since version 22.05, Slurm gives a step one CPU of a task's unless it asks again.
    srun --nodes=$others --ntasks=$others --exclude="$SLURMD_NODENAME" --cpus-per-task="$SLURM_CPUS_PER_TASK" \
        ray start --address "$RAY_ADDRESS" --block "${resources[@]}" "${ports[@]}" &
    others=$!
    joined='import sys, ray; ray.init(logging_level="ERROR"); sys.exit(sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[1]))'
    until python -c "$joined" "$SLURM_JOB_NUM_NODES"; do
        kill -0 "$others" 2>/dev/null || { echo "Ray did not start on all $SLURM_JOB_NUM_NODES nodes: see above"; exit 1; }
        sleep 2
    done
fi

options=()
if [ "$gpus" -gt 0 ]; then
    options+=(--scaling.gpus_per_worker 1)
fi
if [ -f "$run_folder/sweep.json" ]; then
    options+=(--resume "$run_folder")
else
    options+=(--out "$run_folder")
fi

requeue() {
    echo "the time limit is near: job $SLURM_JOB_ID is queued again and will resume $run_folder"
    scontrol requeue "$SLURM_JOB_ID"
}
trap requeue USR1

python "pipelines/$pipeline.py" "${options[@]}" "$@" &
# bash hears a signal only while it waits for what runs in the background; a wait that a signal ended is begun again.
running=$!
until wait "$running"; status=$?; ! kill -0 "$running" 2>/dev/null; do :; done
exit "$status"
