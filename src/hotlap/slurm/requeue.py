"""A training that comes back: how a job's script asks it to leave, and queues it again.

Slurm tells the batch script alone, some minutes before the limit. A signal that goes to a step
reaches every process of it, and would end the workers of a DataLoader before the training has
written its checkpoint: so the script tells the first process of each task, and no other.

    the command ends with 0                     done
    it was told to leave, or left with 75       the job is queued again, and the next attempt goes
                                                on from the command's own checkpoint
    it ends otherwise                           it failed by itself: never queued again
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.errors import UsageError
from hotlap.records.job import JobRequest, Requeue
from hotlap.slurm.quoting import bash_word

ASKED_TO_LEAVE = 75
"""The exit code of a training that wrote its checkpoint because it was told to leave."""
LIMIT_S = 60
"""Slurm may send the signal so much earlier than asked for."""


def signal_directive(requeue: Requeue) -> str:
    """The signal before the time limit, to the batch script alone."""
    return f"#SBATCH --signal=B:USR1@{requeue.before_s}"


def check(request: JobRequest) -> None:
    """Refuse what cannot work."""
    requeue = request.requeue
    if requeue is None:
        return
    if request.launcher == "once":
        raise UsageError("--requeue goes with a training; --tune and --time run once")
    if requeue.before_s + LIMIT_S > request.resources.hours * 3600 / 2:
        hours = request.resources.hours
        raise UsageError(
            f"--requeue asks the command to leave {requeue.before_s / 60:g} minutes before the "
            f"limit, and --hours is {hours:g}: leave it more time, or shorten --requeue-before"
        )


def preparation(request: JobRequest) -> Iterator[str]:
    """Count the attempt, and have a folder for the tasks' numbers."""
    requeue = request.requeue
    assert requeue is not None
    yield "attempt=$((${SLURM_RESTART_COUNT:-0} + 1))"
    yield f'echo "hotlap: attempt $attempt of {requeue.max_attempts} at most" >&2'
    yield f"if ((attempt > {requeue.max_attempts})); then exit 1; fi"
    folder = bash_word(f"{request.folder}/pids")
    yield f'export HOTLAP_PIDS={folder}/"$SLURM_JOB_ID-$attempt"'
    yield 'mkdir -p -- "$HOTLAP_PIDS" || exit 1'


def ending(request: JobRequest) -> Iterator[str]:
    """Wait for the command, tell it to leave when the time comes, and queue the job again."""
    requeue = request.requeue
    assert requeue is not None
    # torchrun passes SIGTERM on to its ranks, and dies of SIGUSR1.
    signal = "TERM" if request.launcher == "node" else "USR1"
    tell = f'kill -{signal} $(cat "$HOTLAP_PIDS/$SLURMD_NODENAME"-*)'
    yield "told="
    yield "leave() {"
    yield "  told=yes"
    yield '  echo "hotlap: the time limit is near: the command is asked to leave" >&2'
    yield (
        '  srun --overlap --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1 '
        f"--cpus-per-task=1 --gres=none bash -c {bash_word(tell)} < /dev/null &"
    )
    yield "}"
    yield "trap leave USR1"
    yield "trap 'told=yes' TERM"
    yield '"${launch[@]}" "${command[@]}" &'
    yield "step=$!"
    yield "# A signal ends `wait` before the command has ended."
    yield 'while wait "$step"; code=$?; kill -0 "$step" 2> /dev/null; do :; done'
    yield 'rm -rf -- "$HOTLAP_PIDS"'
    yield "if ((code == 0)); then exit 0; fi"
    yield f"if [[ -z $told ]] && ((code != {ASKED_TO_LEAVE})); then"
    yield '  echo "hotlap: the command failed by itself with $code: it is not queued again" >&2'
    yield "  exit $code"
    yield "fi"
    yield f"if ((attempt >= {requeue.max_attempts})); then"
    yield '  echo "hotlap: that was the last attempt" >&2'
    yield "  exit $code"
    yield "fi"
    yield "# A job that was cancelled ends in the same way, and stays cancelled."
    yield 'state=$(scontrol --oneliner show job "$SLURM_JOB_ID" | grep -o "JobState=[A-Z_]*")'
    yield "if [[ $state != JobState=RUNNING ]]; then exit $code; fi"
    yield 'echo "hotlap: queued again after $code" >&2'
    yield 'scontrol requeue "$SLURM_JOB_ID" || exit $code'
    yield "# Slurm ends this script; until then it must not look as if it had ended by itself."
    yield "sleep 120"
