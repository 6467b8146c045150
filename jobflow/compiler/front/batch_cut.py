"""Selection of the arguments that are cut into microbatches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from jobflow.core.errors import ArgumentError, JobError, ShapeError, SourceLine
from jobflow.graph.training import Microbatches


def cut_batch(
    whose: str, count: int, where: SourceLine, shapes: Mapping[str, tuple[int, ...]], *, exact: bool, devices: tuple[int, ...] = ()
) -> Microbatches:
    """Divide the batch in arguments of these shapes into `count` microbatches; raise JobError if that is impossible.

    The first argument whose first axis does not have length 1 determines the length of the batch.  All arguments of this length are cut.  With
    `exact`, which guarantees the result of the whole batch, arguments of other lengths are passed whole.  Without `exact`, a length that
    is neither 1 nor the length of the batch raises an error.

    Messages name the job or graph `whose` and the line `where` of the request.  `devices` has the number of rows on each device in the mirrored view,
    if they differ.
    """
    what = f"{whose}: {count} microbatches, requested at {where}"
    if devices and min(devices) < count:
        raise JobError(
            f"{what}: the devices have {list(devices)} rows, and each needs at least {count}; pass at least {count} rows to every device, or "
            f"train on this batch without microbatches, where a device without rows has weight zero"
        )
    lengths = {name: shape[0] for name, shape in shapes.items() if shape and shape[0] != 1}
    if not lengths:
        alone = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise JobError(
            f"{what}: no argument has a first axis longer than 1, so there is no batch to divide"
            f"{f' ({alone})' if alone else ''}; pass the batch as an argument"
        )
    if len(set(lengths.values())) > 1 and not exact:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise JobError(
            f"{what}: the arguments differ in the length of their first axis ({listed}), so the batch is ambiguous; "
            f"pass arguments without rows of the batch with a first axis of length 1, or store them in variables"
        )
    rows = next(iter(lengths.values()))
    lengths = {name: length for name, length in lengths.items() if length == rows}
    if rows == 0:
        raise JobError(f"{what}: the batch has no rows ({', '.join(lengths)}); pass at least {count} rows")
    if count > rows:
        raise JobError(
            f"{what}: the batch has {rows} rows ({', '.join(lengths)}), so {count - rows} of the {count} microbatches "
            f"would be empty; request at most {rows}"
        )
    return Microbatches(count, rows, tuple(lengths), where)


@contextmanager
def explained(microbatches: Microbatches, rows: int) -> Iterator[None]:
    """Add the number of traced rows to errors raised in a `with` block.

    ShapeError and ArgumentError get a longer message, and all other errors get a note.
    """
    batch = f"the {microbatches.rows} rows of the batch ({', '.join(microbatches.arguments)})"
    explanation = (
        f"the body was traced for a microbatch of {rows} of {batch}, because {microbatches.count} microbatches "
        f"are requested at {microbatches.where}; read the length of the batch from an argument, for example {microbatches.arguments[0]}.shape[0]"
    )
    try:
        yield
    except (ShapeError, ArgumentError) as error:
        error.args = (f"{error} ({explanation})",)
        raise
    except Exception as error:
        error.add_note(explanation)
        raise
