"""Recorder of the GPU plans of attention in data/attention_plans.txt: what one more block adds to a step at 1 x 1,024 tokens.

    python tests/gpu/record_attention.py        prints and writes the table, and prints figures of the whole block; needs neither GPU nor CuPy

A block has the size of GPT-2 124M: width 768, 12 heads.  Its figures are the differences between programs of two blocks and of one.  Bytes are
those of the operands of its instructions without updates, each instruction's operands counted once.  Instructions of attention have operands of
[batch, heads, length, size].
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TARGET = HERE / "data" / "attention_plans.txt"
LENGTH, WIDTH, HEADS, WORDS = 1024, 768, 12, 64
#: rate of dropout of the programs that have one
RATE = 0.1


def gpt_example(blocks: int, config: Any) -> Any:
    import gpt

    size = gpt.Size(1, LENGTH, WIDTH, HEADS, blocks, WORDS)
    return declared(lambda words, following: losses(gpt.gpt(words, size), following), config)


def zoo_example(blocks: int, config: Any) -> Any:
    import gpt2

    size = gpt2.Size(1, LENGTH, WORDS, WIDTH, HEADS, blocks, RATE)

    def body(words: Any, following: Any) -> Any:
        import jobflow as flow

        return gpt2.losses(flow.concat([words, flow.slice(following, [None, 0], [None, 1])], 1), size, gpt2.Parallel())

    return declared(body, config)


def model(blocks: int, config: Any) -> Any:
    from jobflow.models import gpt

    def body(words: Any, following: Any) -> Any:
        return gpt(words, following, words=WORDS, length=LENGTH, width=WIDTH, heads=HEADS, blocks=blocks, dropout=RATE)["loss"]

    return declared(body, config)


def benchmark(blocks: int, config: Any) -> Any:
    import jobflow_models
    import workloads

    size = workloads.Gpt2(words=WORDS, length=LENGTH, width=WIDTH, heads=HEADS, blocks=blocks)
    return declared(lambda words, following: losses(jobflow_models.gpt2(words, size), following), config)


PROGRAMS: dict[str, Callable[[int, Any], Any]] = {
    "examples/gpt.py": gpt_example,
    "examples/zoo/gpt2.py, dropout 0.1": zoo_example,
    "jobflow.models.gpt, dropout 0.1": model,
    "benchmarks/gpu": benchmark,
}


def losses(scores: Any, following: Any) -> Any:
    import jobflow as flow

    return flow.nn.sparse_softmax_cross_entropy_with_logits(flow.reshape(following, [-1]), scores, name="loss")


def declared(body: Callable[[Any, Any], Any], config: Any) -> Any:
    import jobflow as flow
    import jobflow.typing as tp

    @flow.global_function("train", config)
    def step(words: tp.Numpy.Placeholder((1, LENGTH), dtype=flow.int32), following: tp.Numpy.Placeholder((1, LENGTH), dtype=flow.int32)) -> tp.Numpy:
        loss = body(words, following)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    return step


def plan(make: Callable[[int, Any], Any], blocks: int, half: bool) -> Any:
    """Return the plan of a job for one GPU."""
    import jobflow as flow
    from jobflow.compiler.compile import distribute, logical
    from jobflow.engine.job import job_of, returned_values
    from jobflow.engine.session import current_session
    from jobflow.kernels.target import target_of
    from jobflow.program.program import ALONE, Program

    flow.clear_default_session()
    config = flow.function_config()
    if half:
        config.mixed_precision(flow.bfloat16)
    job, session, target = job_of(make(blocks, config)), current_session(), target_of("gpu")
    program, results = job.trace(session, job.placement(session), job.declared_shapes(session))
    graph = logical(program, returned_values(results), target).graph
    result = Program(distribute(graph), ALONE, target).plan(0, 1)
    flow.clear_default_session()
    return result


def squares(plan: Any) -> int:
    """Return the number of values of [..., LENGTH, LENGTH] in a plan."""
    slots = {slot for step in plan.instructions for slot in getattr(step, "outputs", ())}
    return sum(slot.type.shape[-2:] == (LENGTH, LENGTH) for slot in slots)


def operand_bytes(plan: Any, attention: bool) -> int:
    """Return the bytes of the operands of forward and backward instructions, or of those with an operand of [batch, heads, length, size]."""
    steps = [{*step.inputs, *step.outputs} for step in plan.instructions if getattr(step, "phase", "update") != "update"]
    return sum(slot.type.nbytes for slots in steps if not attention or any(slot.type.ndim == 4 for slot in slots) for slot in slots)


def rows(whole: bool) -> Iterator[str]:
    """Yield the table, with figures of the whole block if `whole`; these change with all parts of the compiler and are not recorded."""
    yield f"{'program':<36} {'type':<9} {'values of [.., t, t]':>20} {'MB of attention':>16}{'  of the block  instructions' if whole else ''}"
    for name in PROGRAMS:
        for half in (False, True):
            yield row(name, half, whole)


def row(name: str, half: bool, whole: bool = False) -> str:
    one, two = plan(PROGRAMS[name], 1, half), plan(PROGRAMS[name], 2, half)
    steps = len(two.instructions) - len(one.instructions)
    block, own = (operand_bytes(two, only) - operand_bytes(one, only) for only in (False, True))
    of_block = f"{block / 1e6:>14.1f}{steps:>14}" if whole else ""
    return f"{name:<36} {'bfloat16' if half else 'float32':<9} {squares(two):>20} {own / 1e6:>16.1f}{of_block}"


def table(whole: bool = False) -> str:
    return "# one block of GPT-2 124M at 1 x 1,024 tokens; written by record_attention.py\n" + "\n".join(rows(whole)) + "\n"


if __name__ == "__main__":
    sys.path[:0] = [str(HERE.parents[1] / folder) for folder in ("", "examples", "examples/zoo", "benchmarks/gpu")]
    TARGET.write_text(table())
    print(table(whole=True), end="")
