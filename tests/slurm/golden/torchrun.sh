#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:h100:4
#SBATCH --cpus-per-task=96
#SBATCH --time=20:00:00
#SBATCH --mem=468G
#SBATCH --partition=gpu_p6
#SBATCH --constraint=h100
#SBATCH --account=abc@h100
#SBATCH --qos=qos_gpu_h100-t3
#SBATCH --output=/jobs/1/%j.out
#SBATCH --error=/jobs/1/%j.err
#SBATCH --open-mode=append
#SBATCH --no-requeue
#SBATCH --comment=hotlap:1

# What a job or launcher around the submission left behind would mislead this one.
unset ${!SLURM_STEP@} ${!SLURM_CPU_BIND@} ${!TORCHELASTIC_@} ${!PET_@}
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE
cd -- /work || exit 1
source '/project/my venv/bin/activate' || exit 1

# srun does not take these over by itself since Slurm 22.05.
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
# The ranks meet on the first node, which runs this script; by its address if its name
# does not resolve. Jobs that share a node have different numbers, and so other ports.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
getent hosts "$MASTER_ADDR" > /dev/null || MASTER_ADDR=$(hostname -I 2> /dev/null | cut -d ' ' -f 1)
export MASTER_ADDR="${MASTER_ADDR:-127.0.0.1}"
export MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000))

launch=(srun --kill-on-bad-exit=1 --cpu-bind=cores bash -c 'export PET_NNODES=2 PET_NODE_RANK=$SLURM_NODEID
export PET_NPROC_PER_NODE=4
export PET_MASTER_ADDR=$MASTER_ADDR PET_MASTER_PORT=$MASTER_PORT
exec "$@"' task)
command=(torchrun train.py)
echo "hotlap: job $SLURM_JOB_ID on $SLURM_JOB_NODELIST" >&2
exec "${launch[@]}" "${command[@]}"
