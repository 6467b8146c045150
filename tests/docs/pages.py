"""README and docs, taken apart: the programs and commands that a reader would paste."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: pages whose blocks are one program: test_tutorials.py runs them in order, and no other test runs them alone
TUTORIALS = ["callbacks.md", "errors.md", "getting_started.md", *sorted(path.name for path in DOCS.glob("tutorial_*.md"))]
#: a page whose commands run on two nodes: tests/nodes/test_page.py
ON_NODES = "cluster.md"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted((DOCS / "internals").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: <!-- from FILE --> before a block: its lines stand in that file
EXCERPT = re.compile(r"<!-- from (\S+) -->\s*\Z")
#: <!-- output --> before a block: what the program above it prints
OUTPUT = re.compile(r"<!-- output -->\s*\Z")
#: <!-- for LIBRARY --> before a block: a program for another library, which scripts/record_pytorch or `jobflow.compat` runs
FOR = re.compile(r"<!-- for (pytorch|oneflow) -->\s*\Z")
#: the first line of a program or configuration that readers save under this name
SAVED = re.compile(r"# ([\w-]+\.(?:py|yaml))\n")
#: in a program, what tells that it compiles or trains; tests/records runs these too
COMPILES = re.compile(r"global_function|nn\.Graph|backward\(\)|\btrain\(load")
#: what a command begins with
STARTS = ("jobflow ", "python ", "mpiexec ", "scripts/", "srun ", "eval ", "MASTER_ADDR=")
#: of a command that is a form to fill in, not one to paste
FORM = re.compile(r"\b(FILE|PATH|COMMAND|SHELL|SCRIPT|CHECKPOINT|SOURCE|TARGET|PREFIX|N|NAME|JOB)\b|\.\.\.| script\.py\b.*…|config\.yaml|page\.html`")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    #: the file that it is an excerpt of
    excerpt: str | None
    #: what it prints, if the page shows that
    output: str | None = None
    #: the library that the program is for, if it is not jobflow
    library: str | None = None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks() -> Iterator[Block]:
    for path in PAGES:
        yield from _blocks_of(path.name, path.read_text(encoding="utf-8"))


def _blocks_of(page: str, text: str) -> list[Block]:
    all_blocks: list[Block] = []
    for match in FENCE.finditer(text):
        before = text[: match.start()]
        excerpt = EXCERPT.search(before)
        if OUTPUT.search(before):
            program = max(i for i, block in enumerate(all_blocks) if block.language == "python")
            all_blocks[program] = replace(all_blocks[program], output=match[2])
        all_blocks.append(
            Block(
                page,
                before.count("\n") + 1,
                match[1],
                match[2],
                excerpt[1] if excerpt else None,
                library=library[1] if (library := FOR.search(before)) else None,
            )
        )
    return all_blocks


def saved(page: str) -> dict[str, str]:
    """The files that a reader of the page saves: name -> content."""
    return {match[1]: block.text for block in blocks() if block.page == page and (match := SAVED.match(block.text))}


def programs() -> list[Block]:
    return [block for block in blocks() if block.language == "python" and not (block.excerpt or block.library or block.page in TUTORIALS)]


@dataclass(frozen=True)
class Command:
    """A line for a shell, as it stands in a block, a table or a sentence."""

    page: str
    text: str


def commands() -> list[Command]:
    """All that can be pasted, each once, in the order of each page."""
    listed: dict[Command, None] = {}
    for path in PAGES:
        if path.name in (*TUTORIALS, ON_NODES):
            continue
        text = path.read_text(encoding="utf-8")
        for match in re.finditer(FENCE.pattern + r"|`([^`\n]+)`", text, re.MULTILINE | re.DOTALL):
            if match[3] is not None:
                lines = [match[3]] if match[3].startswith(STARTS) and not FORM.search(match[3]) else []
            else:
                lines = shell_lines(match[2]) if match[1] == "bash" else []
            listed.update({Command(path.name, line): None for line in lines})
    return list(listed)


def shell_lines(text: str) -> list[str]:
    """The commands of a block, without their comments; a backslash at the end of a line continues it."""
    joined = re.sub(r"\\\n\s*", "", text)
    return [line for line in (re.sub(r"\s+#.*", "", line).strip() for line in joined.splitlines()) if line and not line.startswith("#")]
