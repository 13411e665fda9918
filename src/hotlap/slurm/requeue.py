"""A training that comes back: how a job's script asks it to leave, and queues it again.

Slurm tells the batch script alone, some minutes before the limit, and the script tells the first
process of each task. When Slurm wants the nodes for another job, it tells the tasks itself, and how
depends on the cluster (ProctrackType): the first process of each, which is ours and passes it on,
or all processes. The workers of a DataLoader would die of that before the training has written its
checkpoint: hooks in the command's Python keep them (`chronometer/keep_workers.py`).

    told to leave, or left with 75   the job is queued again, and the next attempt goes on from the
                                     command's own checkpoint
    ended with 0                     done
    ended otherwise                  it failed by itself: never queued again
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hotlap.errors import UsageError
from hotlap.records.job import JobRequest, Requeue
from hotlap.slurm.quoting import bash_word

ASKED_TO_LEAVE = 75
"""The exit code of a training that wrote its checkpoint because it was told to leave."""


def signal_directive(requeue: Requeue) -> str:
    """The signal before the time limit, to the batch script alone."""
    return f"#SBATCH --signal=B:USR1@{requeue.before_s}"


def check(request: JobRequest) -> None:
    """Refuse what cannot work."""
    requeue = request.requeue
    if requeue is None:
        return
    if request.launcher == "once":
        raise UsageError(
            "--requeue goes with a command that hotlap starts, not with srun of your own"
        )
    if requeue.before_s > request.resources.hours * 3600 / 2:
        hours = request.resources.hours
        raise UsageError(
            f"--requeue asks the command to leave {requeue.before_s / 60:g} min before the "
            f"limit, and --hours is {hours:g}: leave it more time, or shorten --requeue-before"
        )


def preparation(request: JobRequest) -> Iterator[str]:
    """Count the attempt, and have a folder in which its tasks leave word."""
    requeue = request.requeue
    assert requeue is not None
    yield "attempt=$((${SLURM_RESTART_COUNT:-0} + 1))"
    yield f'echo "hotlap: attempt $attempt of {requeue.max_attempts} at most" >&2'
    yield f"if ((attempt > {requeue.max_attempts})); then exit 1; fi"
    folder = bash_word(f"{request.folder}/attempts")
    yield f'export HOTLAP_ATTEMPT={folder}/"$SLURM_JOB_ID-$attempt"'
    yield 'mkdir -p -- "$HOTLAP_ATTEMPT" || exit 1'


def task(request: JobRequest) -> Iterator[str]:
    """Around the command in each task.

    A task that leaves as it was told ends with 0: any other code would make srun end the others,
    which may still be writing their checkpoints.
    """
    assert request.requeue is not None
    if request.requeue.hooks:
        hooks = bash_word(request.requeue.hooks)
        yield f"export HOTLAP_KEEP_WORKERS=1 PYTHONPATH={hooks}${{PYTHONPATH:+:$PYTHONPATH}}"
    yield "told="
    yield "# Where Slurm tells all processes, the canary dies of it, and the command knows already."
    yield "sleep infinity < /dev/null &> /dev/null & canary=$!; disown $canary"
    yield f"tell() {{ {_tell(request, '$1', '$child')}; }}"
    yield "pass_on() { told=yes; sleep 0.5; kill -0 $canary && tell $1; } 2> /dev/null"
    yield "trap 'pass_on TERM' TERM"
    yield "trap 'pass_on USR1' USR1"
    yield '"$@" & child=$!'
    yield 'echo $child > "$HOTLAP_ATTEMPT/$SLURMD_NODENAME-$SLURM_LOCALID.pid"'
    yield from _wait("child")
    yield "kill $canary 2> /dev/null"
    yield "# The signal that ended the command may be on its way here still."
    yield "if ((code)); then sleep 1; fi"
    yield "if [[ -e $HOTLAP_ATTEMPT/told ]]; then told=yes; fi"
    yield f"if [[ -n $told ]] || ((code == {ASKED_TO_LEAVE})); then"
    yield '  echo $code > "$HOTLAP_ATTEMPT/left"'
    yield "  exit 0"
    yield "fi"
    yield "# Said before srun ends the others for it, as if they had been told to leave."
    yield 'if ((code)); then echo $code > "$HOTLAP_ATTEMPT/failed"; fi'
    yield "exit $code"


def seen_by_container(requeue: Requeue | None) -> list[str]:
    """Folders without which the hooks would not be found: the package that they are a part of."""
    return [str(Path(requeue.hooks).parents[1])] if requeue and requeue.hooks else []


def _tell(request: JobRequest, signal: str, pid: str) -> str:
    """Send a signal to the command's own first process, or to those that torchrun started.

    torchrun dies of SIGUSR1, and passes SIGTERM on to all processes of its ranks, workers of data
    among them: so its children are told, which are the ranks.
    """
    if request.launcher != "node":
        return f"kill -{signal} {pid}"
    return f"kill -{signal} $(cat /proc/{pid}/task/*/children) || kill -TERM {pid}"


def _wait(name: str) -> Iterator[str]:
    # A signal ends `wait` before the command has ended.
    yield f'while wait "${name}"; code=$?; kill -0 "${name}" 2> /dev/null; do :; done'


def ending(request: JobRequest) -> Iterator[str]:
    """Wait for the command, tell it to leave when the time comes, and queue the job again."""
    requeue = request.requeue
    assert requeue is not None
    signal = "TERM" if request.launcher == "node" else "USR1"
    pids = '"$HOTLAP_ATTEMPT/$SLURMD_NODENAME"-*.pid'
    tell = f"for pid in $(cat {pids}); do {_tell(request, 'USR1', '$pid')}; done"
    yield "leave() {"
    yield '  touch "$HOTLAP_ATTEMPT/told"'
    yield '  echo "hotlap: the time limit is near: the command is asked to leave" >&2'
    yield (
        '  { srun --overlap --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1 '
        f"--cpus-per-task=1 --mem=0 --gres=none bash -c {bash_word(tell)} < /dev/null ||"
    )
    yield f'    kill -{signal} "$step"; }} &'
    yield "}"
    yield "trap leave USR1"
    yield '"${launch[@]}" "${command[@]}" &'
    yield "step=$!"
    yield from _wait("step")
    yield 'left=$(cat "$HOTLAP_ATTEMPT/left" 2> /dev/null)'
    yield 'failed=$(cat "$HOTLAP_ATTEMPT/failed" 2> /dev/null)'
    yield 'rm -rf -- "$HOTLAP_ATTEMPT"'
    yield "if [[ -n $failed ]]; then"
    yield '  echo "hotlap: the command failed by itself with $failed: not queued again" >&2'
    yield "  exit $failed"
    yield "fi"
    yield "if [[ -z $left ]]; then exit $code; fi"
    yield f"if ((attempt >= {requeue.max_attempts})); then"
    yield '  echo "hotlap: that was the last attempt" >&2'
    yield f"  exit {ASKED_TO_LEAVE}"
    yield "fi"
    yield "# A job that was cancelled ends in the same way, and stays cancelled."
    yield "# The first task of an array has the number of the whole array."
    yield "me=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}"
    yield "me=${me:-$SLURM_JOB_ID}"
    yield 'state=$(scontrol --oneliner show job "$me" | grep -o "JobState=[A-Z_]*")'
    yield f"if [[ $state != JobState=RUNNING ]]; then exit {ASKED_TO_LEAVE}; fi"
    yield 'echo "hotlap: the command left with $left: queued again" >&2'
    yield f'scontrol requeue "$me" || exit {ASKED_TO_LEAVE}'
    yield "# Slurm ends this script; until then it must not look as if it had ended by itself."
    yield "sleep 120"
