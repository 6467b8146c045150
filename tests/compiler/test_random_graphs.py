"""Random programs with random layouts, forward and backward: on any mesh they give what their kernels give; `scripts/fuzz_layouts` runs more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from growing import MESHES, grown, ops
from programs import Mismatch, Program, check, graph_of, read
from shrinking import shrunk
from traced import text, world_of

from jobflow.ops.softmax import Softmax

PROGRAMS = 8  # on each mesh


@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: "x".join(map(str, mesh)))
def test_random_programs_are_what_their_kernels_give(mesh: tuple[int, ...]) -> None:
    program = grown(0, (mesh,))
    with world_of(program.ranks) as world:
        for seed in range(PROGRAMS):
            program = grown(100 * MESHES.index(mesh) + seed, (mesh,))
            try:
                check(world, program)
            except Exception as error:
                error.add_note(f"{program}\nscripts/fuzz_layouts --program FILE runs it again\n{text(graph_of(program))}")
                raise


def test_programs_have_many_ops_and_can_be_read_again() -> None:
    programs = [grown(seed) for seed in range(10)]
    assert all(10 <= ops(program.lines) <= 60 for program in programs)
    assert all(read(str(program)) == program for program in programs)
    assert len({program.mesh for program in programs}) > 2


def test_a_wrong_rule_is_found_and_its_program_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Softmax.rule

    def wrong(self: Softmax, *types: Any) -> Any:
        """The class axis may be split, it says."""
        rule = right(self, *types)
        return replace(rule, spec=rule.spec.lower())

    monkeypatch.setattr(Softmax, "rule", wrong)
    with world_of(2) as world:

        def fails(program: Program) -> str | None:
            try:
                check(world, replace(program, mesh=(2,)))
            except Mismatch:
                return "mismatch"
            except Exception:  # noqa: BLE001 - what cannot be traced or run is not what is looked for
                return "other"
            return None

        program = next(p for p in (grown(seed, ((2,),)) for seed in range(40)) if fails(p) == "mismatch")
        small = shrunk(program, fails)
    assert len(small.lines) <= 3 < len(program.lines)
    assert "softmax" in small.lines[-1]
