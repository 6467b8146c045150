"""The compilation target of programs that all ranks must compile equally."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobflow.kernels.target import Target, target_of

if TYPE_CHECKING:
    from jobflow.engine.session import Session


def common_target(session: Session) -> Target:
    """Return the compilation target that all ranks share; the CPU if some ranks have no GPU."""
    same = session.world is None or len(set(session.world.tags)) == 1
    return session.target() if same else target_of("cpu", session.settings.kernels)
