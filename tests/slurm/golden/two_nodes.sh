#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:h100:4
#SBATCH --cpus-per-task=24
#SBATCH --time=20:00:00
#SBATCH --mem=468G
#SBATCH --partition=gpu_p6
#SBATCH --constraint=h100
#SBATCH --account=abc@h100
#SBATCH --qos=qos_gpu_h100-t3
#SBATCH --hint=nomultithread
#SBATCH --array=0-9%2
#SBATCH --dependency=afterok:12
#SBATCH --mail-user=me@example.org
#SBATCH --mail-type=BEGIN,END,FAIL,REQUEUE
#SBATCH --output=/jobs/1/%A_%a.out
#SBATCH --error=/jobs/1/%A_%a.err
#SBATCH --open-mode=append
#SBATCH --no-requeue
#SBATCH --comment=hotlap:1
#SBATCH --exclusive
#SBATCH --reservation="my course"

# What a job or launcher around the submission left behind would mislead this one.
unset ${!SLURM_STEP@} ${!SLURM_CPU_BIND@} ${!TORCHELASTIC_@} ${!PET_@}
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE
cd -- /work || exit 1
export NCCL_DEBUG=WARN
export NOTE='it'"'"'s $HOME'
# A shell of its own, as a notebook's server has it, may not have made the function.
type -t module > /dev/null || for init in /etc/profile.d/*mod*.sh; do [[ -r $init ]] && source "$init"; done
module load arch/h100 || exit 1
module load pytorch-gpu/2.6 || exit 1
# A shell that knows conda only as a function keeps its program's path here.
eval "$("$(command -v conda || echo "$CONDA_EXE")" shell.bash hook)"
conda activate 'my env' || exit 1

# srun does not take these over by itself since Slurm 22.05.
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
# The ranks meet on the first node, which runs this script; by its address if its name
# does not resolve. Jobs that share a node have different numbers, and so other ports.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)i
getent hosts "$MASTER_ADDR" > /dev/null || MASTER_ADDR=$(hostname -I 2> /dev/null | cut -d ' ' -f 1)
export MASTER_ADDR="${MASTER_ADDR:-127.0.0.1}"
export MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000))

launch=(srun --kill-on-bad-exit=1 bash -c 'export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS
export LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE=4
exec "$@"' task)
command=(python train.py --lr 0.1)
echo "hotlap: job ${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID on $SLURM_JOB_NODELIST" >&2
exec "${launch[@]}" "${command[@]}"
