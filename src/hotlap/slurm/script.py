"""The script of a job: a pure function of its request, and the very file that is sent.

#SBATCH …         what Slurm is asked for
surroundings      folder, variables, modules, environment
meeting place     where the ranks find each other
srun …            the command, once a GPU, or once a node for launchers such as torchrun
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from hotlap.errors import UsageError
from hotlap.records.job import JobRequest
from hotlap.slurm.forms import format_time
from hotlap.slurm.quoting import bash_word, bash_words, directive, file_pattern, job_name
from hotlap.slurm.requeue import (
    ending,
    preparation,
    seen_by_container,
    signal_directive,
    task,
)

FIRST_PORT, N_PORTS = 15_000, 15_000
"""As `hotlap.distributed` chooses them: below those that Linux hands out by itself."""
OWNED = (
    *("job-name", "nodes", "ntasks", "ntasks-per-node", "gres", "cpus-per-task", "time"),
    *("output", "error", "array", "open-mode", "signal", "requeue", "no-requeue", "comment"),
)
"""Directives that hotlap writes itself."""


def script(request: JobRequest) -> str:
    """The whole file."""
    lines = ["#!/bin/bash", *_directives(request), ""]
    lines += [*_surroundings(request), "", *_meeting_place(request), ""]
    lines += _launch(request)
    return "\n".join(lines) + "\n"


def _directives(request: JobRequest) -> Iterator[str]:
    wanted = request.resources
    yield directive("job-name", job_name(request.name))
    yield directive("nodes", str(wanted.nodes))
    yield directive("ntasks-per-node", str(wanted.tasks_per_node))
    yield directive("gres", f"{wanted.gres}:{wanted.gpus_per_node}")
    yield directive("cpus-per-task", str(wanted.cpus_per_task))
    yield directive("time", format_time(wanted.hours))
    optional = {
        "mem": f"{wanted.memory_gb}G" if wanted.memory_gb else None,
        "partition": wanted.partition,
        "constraint": wanted.constraint,
        "account": wanted.account,
        "qos": wanted.qos,
        "hint": request.surroundings.hint,
        "array": request.array,
        "dependency": request.after,
        "mail-user": request.mail,
        "mail-type": "BEGIN,END,FAIL,REQUEUE" if request.mail else None,
    }
    for option, value in optional.items():
        if value:
            yield directive(option, value)
    pattern = "%A_%a" if request.array else "%j"
    yield directive("output", file_pattern(request.folder, f"{pattern}.out"))
    yield directive("error", file_pattern(request.folder, f"{pattern}.err"))
    yield "#SBATCH --open-mode=append"
    yield signal_directive(request.requeue) if request.requeue else "#SBATCH --no-requeue"
    if request.requeue:
        yield "#SBATCH --requeue"
    yield directive("comment", comment(request))
    yield from map(_extra, request.directives)


def comment(request: JobRequest) -> str:
    """By which a job is found again whose number was lost on the way."""
    return f"hotlap:{request.folder.rpartition('/')[2]}"


def _extra(text: str) -> str:
    option, equals, value = text.removeprefix("--").partition("=")
    if not text.startswith("--") or not option.replace("-", "").isalnum():
        raise UsageError(f"--directive is {text!r}; one of sbatch's is expected, as --exclusive")
    if option in OWNED:
        raise UsageError(f"--directive is {text!r}; --{option} is written by hotlap itself")
    return directive(option, value) if equals else f"#SBATCH --{option}"


def _surroundings(request: JobRequest) -> Iterator[str]:
    around = request.surroundings
    yield "# What a job or launcher around the submission left behind would mislead this one."
    yield "unset ${!SLURM_STEP@} ${!SLURM_CPU_BIND@} ${!TORCHELASTIC_@} ${!PET_@}"
    yield "unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE"
    yield f"cd -- {bash_word(request.cwd, 'the working folder')} || exit 1"
    for name, value in around.environment.items():
        if not name.isidentifier() or not name.isascii():
            raise UsageError(f"--env names {name!r}; a variable's name has letters, digits and _")
        yield f"export {name}={bash_word(value, name)}"
    yield from _modules(around.modules)
    if around.conda is not None:
        yield "# A shell that knows conda only as a function keeps its program's path here."
        yield 'eval "$("$(command -v conda || echo "$CONDA_EXE")" shell.bash hook)"'
        yield f"conda activate {bash_word(around.conda)} || exit 1"
    if around.venv is not None:
        yield f"source {bash_word(f'{around.venv}/bin/activate')} || exit 1"


def _modules(names: tuple[str, ...]) -> Iterator[str]:
    if names:
        yield "# A shell of its own, as a notebook's server has it, may not have made the function."
        yield (
            "type -t module > /dev/null || for init in /etc/profile.d/*mod*.sh; do "
            '[[ -r $init ]] && source "$init"; done'
        )
    for name in names:
        yield f"module load {bash_word(name, 'a module')} || exit 1"


def _meeting_place(request: JobRequest) -> Iterator[str]:
    yield "# srun does not take these over by itself since Slurm 22.05."
    yield 'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"'
    yield "# The ranks meet on the first node, which runs this script; by its address if its name"
    yield "# does not resolve. Jobs that share a node have different numbers, and so other ports."
    yield 'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)' + (
        bash_word(request.surroundings.master_suffix) if request.surroundings.master_suffix else ""
    )
    yield (
        'getent hosts "$MASTER_ADDR" > /dev/null || '
        "MASTER_ADDR=$(hostname -I 2> /dev/null | cut -d ' ' -f 1)"
    )
    yield 'export MASTER_ADDR="${MASTER_ADDR:-127.0.0.1}"'
    yield f"export MASTER_PORT=$(({FIRST_PORT} + SLURM_JOB_ID % {N_PORTS}))"


def _launch(request: JobRequest) -> Iterator[str]:
    if request.requeue:
        yield from preparation(request)
    words = filter(None, (bash_words(request.before), _launcher(request)))
    yield f"launch=({' '.join(words)})"
    yield f"command=({bash_words(_command(request))})"
    number = "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" if request.array else "$SLURM_JOB_ID"
    yield f'echo "hotlap: job {number} on $SLURM_JOB_NODELIST" >&2'
    if request.requeue:
        yield from ending(request)
    else:
        yield 'exec "${launch[@]}" "${command[@]}"'


def _launcher(request: JobRequest) -> str:
    """Words up to the command; each task first learns which it is."""
    if request.launcher == "once":
        return ""
    # A hint binds as well, and srun drops it where it is told how to bind.
    binding = "" if request.surroundings.hint else " --cpu-bind=cores"
    options = f"srun --kill-on-bad-exit=1{binding}"
    body = task(request) if request.requeue else ['exec "$@"']
    prelude = "\n".join([*_task_prelude(request), *body])
    return f"{options} bash -c {shlex.quote(prelude)} task"


def _task_prelude(request: JobRequest) -> Iterator[str]:
    wanted = request.resources
    if request.launcher == "node":
        # torchrun takes these for options that are not given.
        yield f"export PET_NNODES={wanted.nodes} PET_NODE_RANK=$SLURM_NODEID"
        yield f"export PET_NPROC_PER_NODE={wanted.gpus_per_node}"
        yield "export PET_MASTER_ADDR=$MASTER_ADDR PET_MASTER_PORT=$MASTER_PORT"
    elif wanted.nodes * wanted.tasks_per_node > 1:
        yield "export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS"
        yield f"export LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE={wanted.tasks_per_node}"


def _command(request: JobRequest) -> list[str]:
    around = request.surroundings
    if around.container is None:
        return list(request.command)
    folders = [request.cwd, *around.binds, *seen_by_container(request.requeue)]
    binds = [word for one in folders for word in ("--bind", one)]
    words = [around.container_program, "exec", around.container_gpu, *binds, "--pwd", request.cwd]
    return [*words, around.container, *request.command]
