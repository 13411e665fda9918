"""The doctor's diagnosis as plain text: the Machine, the command that was run, the findings."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from hotlap.records.ceilings import Ceiling, Ceilings, Exchange
from hotlap.records.finding import Diagnosis, Finding, Limit
from hotlap.records.profile import Profile
from hotlap.records.run import PHASES, Run
from hotlap.records.software import Software, Stack
from hotlap.records.system import Cpu, Gpu, System
from hotlap.report.terminal import quantity, seconds, size
from hotlap.wording import n_of

WIDTH = 100
NAME_WIDTH = 12
CEILING_WIDTH = 42
LIMIT_WIDTH = 24
_SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))

Rows = Iterator[tuple[str, str]]


def render_diagnosis(diagnosis: Diagnosis) -> str:
    """All that a diagnosis says, on one or two screens."""
    machine = diagnosis.machine
    lines = [f"hotlap doctor on {machine.system.hostname or 'an unnamed machine'}"]
    lines += _section("System", _system(machine.system))
    lines += _section("Software", _software(machine.software))
    lines += _section("Stack", _stack(machine.stack))
    lines += _ceilings(machine.ceilings)
    if diagnosis.run is not None:
        lines += _section("Command", _command(diagnosis.run))
    if diagnosis.limits:
        lines += ["", "What the step is spent on", *map(_limit, diagnosis.limits)]
    lines += _findings(diagnosis.findings)
    notes = (*machine.notes, *diagnosis.notes, *_profile_notes(diagnosis.profile))
    lines += ["", *(f"note: {note}" for note in notes)] if notes else []
    return "\n".join(lines)


def _limit(limit: Limit) -> str:
    return f"  {limit.name:<{LIMIT_WIDTH}} {100 * limit.share:>3.0f} %   {limit.evidence}"


def _profile_notes(profile: Profile | None) -> Iterator[str]:
    if profile is not None:
        yield from (f"profile: {note}" for note in profile.notes)
        for rank in profile.ranks:
            yield from (f"profile of rank {rank.rank}: {note}" for note in rank.notes)


def _section(title: str, rows: Iterable[tuple[str, str]]) -> list[str]:
    return ["", title, *(line for name, text in rows for line in _row(name, text))]


def _row(name: str, text: str) -> list[str]:
    first, after = f"  {name:<{NAME_WIDTH}}", " " * (NAME_WIDTH + 2)
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=after, break_on_hyphens=False
    )


def _system(system: System) -> Rows:
    yield "GPUs", _gpus(system)
    yield from (("", line) for line in _gpu_states(system.gpus))
    yield "CPU", _cpu(system.cpu)
    yield "memory", _memory(system)
    yield "storage", _storage(system)
    yield "network", _network(system)
    if system.scheduler:
        job = system.scheduler
        nodes = f", {job.n_nodes} nodes" if job.n_nodes and job.n_nodes > 1 else ""
        yield "job", f"{job.name} {job.job_id}{nodes}"
    where = f"container: {system.container}" if system.container else "no container seen"
    yield "node", f"Linux {system.kernel or 'of an unknown version'}; {where}"


def _gpus(system: System) -> str:
    if not system.gpus:
        return system.gpus_from or "unknown"
    kinds: dict[str, int] = {}
    for gpu in system.gpus:
        parts = [gpu.name, size(gpu.memory_bytes) if gpu.memory_bytes else ""]
        parts += [f"{gpu.n_sms} SMs" if gpu.n_sms else ""]
        parts += [f"compute {gpu.compute_capability}" if gpu.compute_capability else ""]
        parts += [f"{gpu.power_limit_w:.0f} W" if gpu.power_limit_w else ""]
        parts += [f"{gpu.clock_max_mhz} MHz" if gpu.clock_max_mhz else ""]
        parts += [f"{gpu.n_nvlinks} NVLinks" if gpu.n_nvlinks else ""]
        words = ", ".join(filter(None, parts))
        kinds[words] = kinds.get(words, 0) + 1
    text = "; ".join(f"{n} x {words}" for words, n in kinds.items())
    paths = sorted({pair.path for pair in system.gpu_pairs})
    between = f"; between them: {', '.join(paths)}" if paths else ""
    return f"{text}{between} (told by {system.gpus_from})"


def _gpu_states(gpus: Sequence[Gpu]) -> Iterator[str]:
    hidden = [str(gpu.index) for gpu in gpus if not gpu.is_visible]
    if hidden:
        yield f"hidden by CUDA_VISIBLE_DEVICES: {', '.join(hidden)}"
    for gpu in gpus:
        words = []
        if gpu.memory_used_bytes and gpu.processes:
            others = f"{len(gpu.processes)} other process" + "es" * (len(gpu.processes) > 1)
            words.append(f"{others}, {size(gpu.memory_used_bytes)}")
        words += [*gpu.slowdowns, *(["cut into partitions"] if gpu.is_mig else [])]
        words += ["no ECC"] if gpu.is_ecc is False else []
        if words:
            yield f"GPU {gpu.index}: {', '.join(words)}"


def _cpu(cpu: Cpu) -> str:
    bounds = ", ".join(f"{name} {n}" for name, n in cpu.bounds.items() if n != cpu.n_cpus)
    text = f"{cpu.model or 'unknown'}; {cpu.n_allocated or '?'} of {cpu.n_cpus or '?'} CPUs"
    text += f" allocated ({bounds})" if bounds else " allocated"
    text += f", {cpu.n_cores} cores" if cpu.n_cores else ""
    text += f", {len(cpu.numa)} NUMA nodes" if len(cpu.numa) > 1 else ""
    text += f"; load {cpu.load_1min:.1f}" if cpu.load_1min is not None else ""
    usable = [one.name for one in cpu.instructions if one.state == "usable"]
    dead = [one.name for one in cpu.instructions if one.state == "dies"]
    untried = [o.name for o in cpu.instructions if o.is_advertised and o.state == "unknown"]
    text += f"; usable: {' '.join(usable)}" if usable else ""
    text += f"; advertised, not usable: {' '.join(dead)}" if dead else ""
    text += f"; advertised, not tried: {' '.join(untried)}" if untried else ""
    return text


def _memory(system: System) -> str:
    memory = system.memory
    limit = f"job's limit {size(memory.limit_bytes)}" if memory.limit_bytes else "no limit"
    return (
        f"{size(memory.total_bytes)}, {limit}, {size(memory.available_bytes)} available; "
        f"/dev/shm {size(memory.shared_bytes)}"
    )


def _storage(system: System) -> str:
    storage = system.storage
    if storage is None:
        return "unknown"
    where = f"{storage.path} on {storage.mount or 'an unknown mount'}"
    kind = f"{storage.filesystem or 'unknown'}, {storage.kind}" if storage.filesystem else "unknown"
    text = f"{where} ({kind}), {size(storage.free_bytes)} free"
    if storage.read_bytes_per_s:
        text += f"; one reader {_scaled(storage.read_bytes_per_s, 'B/s')}"
    if storage.opens_per_s:
        text += f", {quantity(round(storage.opens_per_s))} small files/s"
    return f"{text} ({storage.measured_on})"


def _network(system: System) -> str:
    network = system.network
    up = [
        " ".join(
            filter(
                None,
                (
                    one.name,
                    one.address,
                    f"{one.speed_mbit_per_s / 1e3:g} Gbit/s" if one.speed_mbit_per_s else "",
                ),
            )
        )
        for one in network.interfaces
        if one.is_up
    ]
    active = [port for port in network.infiniband if port.is_active]
    ports = f"{len(active)} of {len(network.infiniband)} InfiniBand ports active"
    rates = {f"{port.rate_gbit_per_s:g} Gbit/s" for port in active if port.rate_gbit_per_s}
    ports += f" ({', '.join(sorted(rates))})" if rates else ""
    return f"{', '.join(up) or 'none is up'}; {ports if network.infiniband else 'no InfiniBand'}"


def _software(software: Software) -> Rows:
    python = software.python
    kind = "its own environment" if python.is_isolated else "the system's"
    yield "Python", f"{python.version} ({kind})"
    torch = software.torch
    if torch is None:
        yield "torch", f"none: {software.why_no_torch}"
    else:
        parts = [torch.version]
        for name, value in (("CUDA", torch.cuda), ("ROCm", torch.hip)):
            parts += [f"{name} {value}"] if value else []
        for name, value in (("cuDNN", torch.cudnn), ("NCCL", torch.nccl), ("BLAS", torch.blas)):
            parts += [f"{name} {value}"] if value else []
        parts += [f"CPU kernels {torch.cpu_capability}", _count(torch.n_threads, "thread")]
        yield "torch", ", ".join(parts)
        if not torch.is_cuda_available:
            yield "", f"no GPU in torch: {torch.why_no_cuda}"
    if software.driver:
        cuda = f" (CUDA up to {software.driver_cuda})" if software.driver_cuda else ""
        yield "driver", f"{software.driver}{cuda}"
    packages = (f"{name} {version}" for name, version in software.packages.items())
    yield "packages", ", ".join(packages) or "none of those that matter"
    yield "compilers", ", ".join(_compilers(software.compilers)) or "none on the PATH"
    if software.environment:
        variables = (f"{name}={value}" for name, value in software.environment.items())
        yield "environment", " ".join(variables)


def _compilers(compilers: dict[str, str]) -> Iterator[str]:
    """The version alone, which is the last word that begins with a digit."""
    for name, line in compilers.items():
        numbers = [word for word in line.replace(",", " ").split() if word[:1].isdigit()]
        yield f"{name} {numbers[-1] if numbers else line}"


def _stack(stack: Stack) -> Rows:
    for words in dict.fromkeys(f"{fit.state}: {fit.how}" for fit in stack.gpus):
        alike = [str(fit.gpu) for fit in stack.gpus if f"{fit.state}: {fit.how}" == words]
        yield ("GPU " if len(alike) == 1 else "GPUs ") + ",".join(alike), words
    if stack.driver != "unknown":
        yield "driver", f"{stack.driver}: {stack.driver_how}"
    yield "CPU", f"{stack.cpu_capability}: {stack.cpu_how}"
    yield "decoder", f"{stack.decoder}: {stack.decoder_how}"
    threads = f"{_count(stack.n_threads, 'thread')} on {_count(stack.n_cpus_allocated, 'CPU')}"
    precision = ""
    if stack.matmul_precision != "unknown":
        precision = (
            f"fp32 products in {stack.matmul_precision}, convolutions in {stack.conv_precision}"
        )
    yield "settings", "; ".join(filter(None, (threads, f"allocator {stack.allocator}", precision)))
    for bad in stack.known_bad:
        yield "known bad", f"{bad.package} {bad.version}: {bad.what}"


def _ceilings(ceilings: Ceilings | None) -> list[str]:
    if ceilings is None:
        return ["", "Ceilings", "  not measured"]
    how = f"kept from {ceilings.measured}" if ceilings.is_cached else "measured now"
    how += ", quick" if ceilings.is_quick else ""
    how += ", while the CPUs were busy" if ceilings.is_busy else ""
    lines = ["", f"Ceilings ({how}, in {ceilings.took_s:.0f} s)"]
    lines += [_ceiling(one) for one in ceilings.rates]
    lines += _exchanges(ceilings.exchanges)
    return [*lines, *_row("ranks", ceilings.exchanges_note)]


def _ceiling(one: Ceiling) -> str:
    name = f"{one.name} ({one.device})" if one.device != "cpu" else f"{one.name} (CPU)"
    if one.value is None:
        return f"  {name:<{CEILING_WIDTH}} {'-':>14}  {one.note}"
    value = seconds(one.value) if one.unit == "s" else _scaled(one.value, one.unit)
    sheet = ""
    if one.sheet and one.ratio is not None:
        sheet = f"  {100 * one.ratio:.0f} % of {_scaled(one.sheet, one.unit)} stated"
    return f"  {name:<{CEILING_WIDTH}} {value:>14}{sheet}"


def _exchanges(exchanges: Sequence[Exchange]) -> Iterator[str]:
    """A line an operation: the time of its smallest size, the bandwidth of its largest."""
    for operation in dict.fromkeys(one.operation for one in exchanges):
        sizes = sorted((x for x in exchanges if x.operation == operation), key=lambda x: x.n_bytes)
        small, large = sizes[0], sizes[-1]
        name = f"{operation}, {large.world_size} ranks ({large.device})"
        if small.median_s is None or large.bus_bytes_per_s is None:
            yield f"  {name:<{CEILING_WIDTH}} {'WRONG RESULT':>14}"
            continue
        rate = _scaled(large.bus_bytes_per_s, "B/s")
        yield (
            f"  {name:<{CEILING_WIDTH}} {rate:>14}  of the bus at {size(large.n_bytes)}; "
            f"{seconds(small.median_s)} for {size(small.n_bytes)}"
        )


def _command(run: Run) -> Rows:
    """A short run of it: what its step does."""
    yield "ran", shlex.join(run.command)
    n_steps = f"{n_of(run.steps.measured, 'step')} measured after {run.steps.warmup} of warm-up"
    yield "ended", f"status {run.status}, exit code {run.exit_code}; {n_steps} (Run {run.id})"
    if run.step_s is None or run.phases_s is None:
        return
    rate = f", {quantity(run.samples_per_s)} samples/s" if run.samples_per_s else ""
    yield "step", f"{seconds(run.step_s.mean)}{rate}: {run.verdict}"
    mean = run.step_s.mean or 1.0
    phases = {name: getattr(run.phases_s, name) for name in PHASES}
    words = (f"{name} {100 * value / mean:.0f} %" for name, value in phases.items() if value)
    yield "phases", ", ".join(words)
    if run.flops.mfu is not None:
        yield "MFU", f"{100 * run.flops.mfu:.1f} %"


def _findings(findings: Sequence[Finding]) -> list[str]:
    if not findings:
        return ["", "Findings", "  none"]
    lines = ["", f"Findings ({len(findings)})"]
    for finding in findings:
        gain = f", up to {finding.gain:.3g}x" if finding.gain else ""
        lines += _row(finding.severity, f"{finding.summary} [{finding.rule}{gain}]")
        lines += [line for text in finding.evidence for line in _row("", text)]
        lines += _row("", f"-> {finding.cure}")
    return lines


def _count(n: int | None, what: str) -> str:
    return f"{n or 'unknown'} {what}{'' if n == 1 else 's'}"


def _scaled(value: float, unit: str) -> str:
    for scale, prefix in _SCALES if unit != "images/s" else ():
        if value >= scale:
            number = value / scale
            return (
                f"{number:.3g} {prefix}{unit}"
                if number < 999.5
                else f"{number:,.0f} {prefix}{unit}"
            )
    return f"{value:,.0f} {unit}"
