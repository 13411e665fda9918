"""`hotlap efficiency`: what a job made of the GPUs that it had."""

from __future__ import annotations

from collections.abc import Sequence

from hotlap.cli import options
from hotlap.records.codec import to_json


def main(argv: Sequence[str]) -> int:
    """Tell of one job; the exit code."""
    parser = options.Parser(
        prog="hotlap efficiency",
        usage="hotlap efficiency JOB",
        description="What a job made of what it had: GPU use, data wait, energy, cores, memory, "
        "and GPU hours wasted, from Slurm's accounts and the job's own Runs.",
    )
    parser.add_argument(
        "job", metavar="JOB", help="its number, as 12, or 12_3 in an array; its name; or `last`"
    )
    options.add_json(parser)
    options.add_runs_dir(parser)
    arguments = parser.parse_args(argv)
    options.check_json_target(arguments.json)
    from hotlap.report.efficiency import render_efficiency
    from hotlap.slurm.efficiency import efficiency
    from hotlap.slurm.find import newest_number

    number = newest_number(arguments.job, arguments.runs_dir.absolute())
    found = efficiency(number, options.open_store(arguments.runs_dir))
    whole = {"gpu_hours": found.gpu_hours, "wasted_gpu_hours": found.wasted_gpu_hours}
    options.write_result(arguments.json, {**to_json(found), **whole})
    print(render_efficiency(found))
    return 0
