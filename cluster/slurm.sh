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
#
# A sweep over the nodes of one allocation:  sbatch cluster/slurm.sh --recipe quickstart --seeds 0 1 2
# Submit from the repository, on a file system that all nodes share. Five minutes before the time limit the job asks to be queued
# again, as Slurm itself does only after a preemption or a lost node; a requeued job resumes where it stopped.
# What follows the script's name goes to PIPELINE (default sweep_noise).
set -euo pipefail

pipeline=${PIPELINE:-sweep_noise}
root=${SLURM_SUBMIT_DIR:-$PWD}
run_folder=${RUN_FOLDER:-$root/runs/$pipeline-$SLURM_JOB_ID}

cd "$root"
# Once, before the nodes start: the committed lock file decides every version.
uv sync --frozen --no-dev --extra s3 --extra gcs
# `ray symmetric-run` calls `ray` by its bare name.
export PATH=$root/.venv/bin:$PATH

head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# The head's address on the cluster's own network; the port differs from job to job, as nodes may be shared.
head_address=$(srun --nodes=1 --ntasks=1 --nodelist="$head_node" hostname --ip-address | awk '{print $1}')
port=$((20000 + SLURM_JOB_ID % 20000))

# Every node must show this token; the file is readable by its owner only and is on the shared file system.
export RAY_AUTH_MODE=token
export RAY_AUTH_TOKEN_PATH=$root/.ray-token-$SLURM_JOB_ID
(umask 077 && head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$RAY_AUTH_TOKEN_PATH")
trap 'rm -f "$RAY_AUTH_TOKEN_PATH"' EXIT

export RAY_ATR_HOME=$root
export RAY_ADDRESS=$head_address:$port
# Socket names have a short limit, and node-local temporary folders are often long.
export RAY_TMPDIR=/tmp/ray-$SLURM_JOB_ID

if [ -f "$run_folder/sweep.json" ]; then
    where=(--resume "$run_folder")
else
    where=(--out "$run_folder")
fi

requeue() {
    echo "the time limit is near: job $SLURM_JOB_ID is queued again and will resume $run_folder"
    scontrol requeue "$SLURM_JOB_ID"
}
trap requeue USR1

# Starts Ray on every node, runs the command on the first one when all have joined, and stops Ray after it.
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" \
    ray symmetric-run \
    --address "$RAY_ADDRESS" \
    --min-nodes "$SLURM_JOB_NUM_NODES" \
    --num-cpus="$SLURM_CPUS_PER_TASK" \
    --num-gpus="${SLURM_GPUS_ON_NODE:-1}" \
    -- \
    python "pipelines/$pipeline.py" "${where[@]}" --scaling.gpus_per_worker 1 "$@" &
# bash hears a signal only while it waits for what runs in the background; a wait that a signal ended is begun again.
running=$!
until wait "$running"; status=$?; ! kill -0 "$running" 2>/dev/null; do :; done
exit "$status"
