#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=10
#SBATCH --time=01:30:00
#SBATCH --output=/jobs/1/%j.out
#SBATCH --error=/jobs/1/%j.err
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@180
#SBATCH --requeue
#SBATCH --comment=hotlap:1

# What a job or launcher around the submission left behind would mislead this one.
unset ${!SLURM_STEP@} ${!SLURM_CPU_BIND@} ${!TORCHELASTIC_@} ${!PET_@}
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE
cd -- /work || exit 1

# srun does not take these over by itself since Slurm 22.05.
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
# The ranks meet on the first node, which runs this script; by its address if its name
# does not resolve. Jobs that share a node have different numbers, and so other ports.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
getent hosts "$MASTER_ADDR" > /dev/null || MASTER_ADDR=$(hostname -I 2> /dev/null | cut -d ' ' -f 1)
export MASTER_ADDR="${MASTER_ADDR:-127.0.0.1}"
export MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000))

attempt=$((${SLURM_RESTART_COUNT:-0} + 1))
echo "hotlap: attempt $attempt of 20 at most" >&2
if ((attempt > 20)); then exit 1; fi
export HOTLAP_ATTEMPT=/jobs/1/attempts/"$SLURM_JOB_ID-$attempt"
mkdir -p -- "$HOTLAP_ATTEMPT" || exit 1
launch=(srun --kill-on-bad-exit=1 --cpu-bind=cores bash -c 'export PET_NNODES=1 PET_NODE_RANK=$SLURM_NODEID
export PET_NPROC_PER_NODE=1
export PET_MASTER_ADDR=$MASTER_ADDR PET_MASTER_PORT=$MASTER_PORT
export HOTLAP_KEEP_WORKERS=1 PYTHONPATH=/python/hotlap/chronometer/inject${PYTHONPATH:+:$PYTHONPATH}
told=
# Where Slurm tells all processes, the canary dies of it, and the command knows already.
sleep infinity < /dev/null &> /dev/null & canary=$!; disown $canary
tell() { kill -$1 $(cat /proc/$child/task/*/children) || kill -TERM $child; }
pass_on() { told=yes; sleep 0.5; kill -0 $canary && tell $1; } 2> /dev/null
trap '"'"'pass_on TERM'"'"' TERM
trap '"'"'pass_on USR1'"'"' USR1
"$@" & child=$!
echo $child > "$HOTLAP_ATTEMPT/$SLURMD_NODENAME-$SLURM_LOCALID.pid"
while wait "$child"; code=$?; kill -0 "$child" 2> /dev/null; do :; done
kill $canary 2> /dev/null
# The signal that ended the command may be on its way here still.
if ((code)); then sleep 1; fi
if [[ -e $HOTLAP_ATTEMPT/told ]]; then told=yes; fi
if [[ -n $told ]] || ((code == 75)); then
  echo $code > "$HOTLAP_ATTEMPT/left"
  exit 0
fi
# Said before srun ends the others for it, as if they had been told to leave.
if ((code)); then echo $code > "$HOTLAP_ATTEMPT/failed"; fi
exit $code' task)
command=(apptainer exec --nv --bind /work --bind /python/hotlap --pwd /work /images/torch.sif torchrun train.py)
echo "hotlap: job $SLURM_JOB_ID on $SLURM_JOB_NODELIST" >&2
leave() {
  touch "$HOTLAP_ATTEMPT/told"
  echo "hotlap: the time limit is near: the command is asked to leave" >&2
  { srun --overlap --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --cpus-per-task=1 --mem=0 --gres=none bash -c 'for pid in $(cat "$HOTLAP_ATTEMPT/$SLURMD_NODENAME"-*.pid); do kill -USR1 $(cat /proc/$pid/task/*/children) || kill -TERM $pid; done' < /dev/null ||
    kill -TERM "$step"; } &
}
trap leave USR1
"${launch[@]}" "${command[@]}" &
step=$!
while wait "$step"; code=$?; kill -0 "$step" 2> /dev/null; do :; done
left=$(cat "$HOTLAP_ATTEMPT/left" 2> /dev/null)
failed=$(cat "$HOTLAP_ATTEMPT/failed" 2> /dev/null)
rm -rf -- "$HOTLAP_ATTEMPT"
if [[ -n $failed ]]; then
  echo "hotlap: the command failed by itself with $failed: not queued again" >&2
  exit $failed
fi
if [[ -z $left ]]; then exit $code; fi
if ((attempt >= 20)); then
  echo "hotlap: that was the last attempt" >&2
  exit 75
fi
# A job that was cancelled ends in the same way, and stays cancelled.
# The first task of an array has the number of the whole array.
me=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
me=${me:-$SLURM_JOB_ID}
state=$(scontrol --oneliner show job "$me" | grep -o "JobState=[A-Z_]*")
if [[ $state != JobState=RUNNING ]]; then exit 75; fi
echo "hotlap: the command left with $left: queued again" >&2
scontrol requeue "$me" || exit 75
# Slurm ends this script; until then it must not look as if it had ended by itself.
sleep 120
