"""Which rank ends a job, from what ranks say of themselves and when."""

from __future__ import annotations

from dataclasses import replace

from hotlap.distributed.judge import Judge, Sign, Verdict

STALL_S, TIMEOUT_S = 40.0, 600.0
RUNNING = Sign(1, 10, "in the step", 5, False, False, "running", 77, "here")


def watch(
    signs_at: dict[int, dict[int, Sign]], until_s: int, every_s: int = 1
) -> tuple[int, Verdict] | None:
    """Look every second at the signs that hold from some second on; the first verdict, and when.

    Ranks that run count their signs by themselves, unless the sign is of a number below zero.
    """
    judge, signs = Judge(STALL_S, TIMEOUT_S), signs_at[0]
    for second in range(0, until_s, every_s):
        signs = signs_at.get(second, signs)
        counted = {
            rank: sign if sign.n_signs < 0 else replace(sign, n_signs=second)
            for rank, sign in signs.items()
        }
        verdict = judge.look(counted, float(second))
        if verdict is not None:
            return second, verdict
    return None


def behind(**changes: object) -> dict[int, Sign]:
    """Rank 1 still loads data, the other two are one section further."""
    late = replace(RUNNING, n_sections=9, section="loading data", **changes)
    return {0: RUNNING, 1: late, 2: RUNNING}


def test_a_rank_that_others_wait_for_is_named_after_the_stall() -> None:
    found = watch({0: behind()}, 100)
    assert found is not None
    second, verdict = found
    assert STALL_S < second < STALL_S + 3
    assert (verdict.rank, verdict.pid, verdict.process) == (1, 77, "here")
    assert "rank 1 has stood still for 40 s (loading data, step 5)" in verdict.reason


def test_first_steps_and_long_sections_have_the_time_of_collectives() -> None:
    for patience in ({"is_first": True}, {"is_long": True}):
        found = watch({0: behind(**patience)}, 1000)
        assert found is not None
        assert TIMEOUT_S < found[0] < TIMEOUT_S + 3


def waiting(line: str = "graph.py:1 in backward") -> Sign:
    return replace(RUNNING, line=line, is_waiting=True)


def test_where_all_are_in_one_section_the_one_that_does_not_wait_is_named() -> None:
    at_work = replace(RUNNING, line="model.py:7 in forward")
    found = watch({0: {0: waiting(), 1: at_work, 2: waiting()}}, 100)
    assert found is not None
    assert STALL_S < found[0] < STALL_S + 3
    assert found[1].rank == 1
    place = "in the step, step 5, at model.py:7 in forward"
    assert f"rank 1 has stood still for 40 s ({place})" in found[1].reason


def test_where_none_can_be_named_all_are_told() -> None:
    found = watch({0: {0: waiting(), 1: waiting("c10d.py:2 in wait")}}, 100)
    assert found is not None
    lines = "rank 0 at graph.py:1 in backward, rank 1 at c10d.py:2 in wait"
    assert f"no rank has moved for 40 s (in the step, step 5: {lines})" in found[1].reason


def test_steps_that_were_always_slow_are_waited_for() -> None:
    """One of 50 s, seen in the first steps; then one of four minutes."""
    first = replace(RUNNING, is_first=True)
    after = replace(waiting(), n_sections=11)
    signs = {0: {0: first, 1: first}, 50: {0: after, 1: after}}
    assert watch(signs, 50 + 240) is None
    assert watch(signs, 50 + 300) is not None
    long = replace(first, n_sections=10, is_long=True)
    signs = {0: {0: long, 1: long}, 50: {0: after, 1: after}}
    found = watch(signs, 100)
    assert found is not None, "what is long by nature tells nothing about steps"


def test_a_rank_that_moves_on_in_time_is_not_named() -> None:
    moves = {second: {0: at(second), 1: at(second - 30)} for second in range(0, 600, 30)}
    assert watch(moves, 600) is None


def at(n_sections: int) -> Sign:
    return replace(RUNNING, n_sections=n_sections)


def test_a_rank_without_signs_is_named_wherever_it_was() -> None:
    silent = replace(RUNNING, n_signs=-1, is_long=True)
    found = watch({0: {0: RUNNING, 1: silent}}, 100)
    assert found is not None
    assert "rank 1 has given no sign for 40 s" in found[1].reason
    first = replace(silent, is_first=True)
    assert watch({0: {0: RUNNING, 1: first}}, int(TIMEOUT_S)) is None


def test_a_rank_that_raised_is_named_soon_and_one_that_left_never() -> None:
    raised = replace(RUNNING, n_signs=-1, state="ValueError: bad")
    found = watch({0: {0: RUNNING, 1: RUNNING}, 20: {0: RUNNING, 1: raised}}, 100)
    assert found is not None
    assert 20 < found[0] < 30
    assert "rank 1 ended with ValueError: bad" in found[1].reason
    left = replace(RUNNING, n_signs=-1, n_sections=99, state="left")
    assert watch({0: {0: RUNNING, 1: left}}, 2000) is None


def test_who_was_stopped_itself_names_nobody() -> None:
    """After a pause of all processes the first looks come before the others' first signs."""
    silent = replace(RUNNING, n_signs=-1)
    assert watch({0: {0: RUNNING, 1: silent}}, 5000, every_s=1000) is None
