"""`hotlap clusters`: the clusters that are known, and what is known of each."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from hotlap.cli import options
from hotlap.errors import UsageError
from hotlap.slurm.catalogue import find_by_slurm_name, find_cluster, own_folder, profile_paths


def main(argv: Sequence[str]) -> int:
    """List, show, discover or check; the exit code."""
    arguments = _parse(argv)
    options.check_json_target(arguments.json)
    actions = {"list": _list, "show": _show, "discover": _discover, "check": _check}
    return actions[arguments.action](arguments)


def _list(arguments: argparse.Namespace) -> int:
    from hotlap.report.clusters import render_list

    clusters = [find_cluster(name) for name in profile_paths()]
    options.write_result(arguments.json, clusters)
    print(render_list(clusters))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from hotlap.report.clusters import render_cluster
    from hotlap.slurm.profile_text import flatten

    if arguments.name is None:
        raise UsageError(f"no cluster was named; there are {', '.join(profile_paths())}")
    cluster = find_cluster(arguments.name)
    options.write_result(arguments.json, cluster)
    print(render_cluster(cluster, flatten(cluster)))
    return 0


def _discover(arguments: argparse.Namespace) -> int:
    from hotlap.slurm.discover import discover
    from hotlap.slurm.profile_text import to_toml

    cluster = discover()
    options.write_result(arguments.json, cluster)
    text = to_toml(cluster)
    if arguments.output is None:
        print(text, end="")
        return 0
    if arguments.output.exists() and not arguments.force:
        raise UsageError(f"{arguments.output} exists; --force writes over it")
    try:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{arguments.output} cannot be written: {error.strerror}") from None
    print(f"written: {arguments.output}")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from hotlap.slurm.check import differences
    from hotlap.slurm.discover import discover

    live = discover()
    if arguments.name is None:
        cluster = find_by_slurm_name(live.slurm_name or "")
        if cluster is None:
            raise UsageError(
                f"no known cluster calls itself '{live.slurm_name}'; name one, as in "
                "`hotlap clusters check jean-zay`"
            )
    else:
        cluster = find_cluster(arguments.name)
    found = differences(cluster, live)
    options.write_result(arguments.json, {"cluster": cluster.name, "differences": found})
    for sentence in found:
        print(sentence)
    if not found:
        print(f"the profile of {cluster.name} agrees with the cluster")
    return 1 if found else 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = options.Parser(
        prog="hotlap clusters",
        usage="hotlap clusters [list | show NAME | discover [-o FILE] | check [NAME]]",
        description="The clusters that hotlap knows: nodes, partitions, QoS and their limits, each "
        "value with where it was read and when. `discover` writes a profile of the cluster you "
        "are on; `check` compares one with it.",
        epilog=f"Your own profiles lie in {own_folder()} as NAME.toml, and come before those of "
        "the package.",
    )
    parser.add_argument(
        "action", nargs="?", default="list", choices=("list", "show", "discover", "check")
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="a cluster, or a profile's path")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="of discover")
    parser.add_argument("--force", action="store_true", help="write over FILE")
    options.add_json(parser)
    return parser.parse_intermixed_args(argv)
