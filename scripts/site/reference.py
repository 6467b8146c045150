"""The pages of the API reference: an entry for every public name, grouped by subject."""

from __future__ import annotations

from collections.abc import Callable

from public_names import PAGES, STUBS, Name, is_member, module_of, names, page_of
from public_objects import brief, call, documented, has_table, members, value_of

#: how every page of the reference begins
INTRODUCTION = """\
# API reference

Every public name of jobflow has an entry here, with its signature and defaults. Examples assume these imports:

```python
import numpy as np

import jobflow as flow
from jobflow import nn
```

In examples, `path` is a path that does not exist yet, and `run.yaml` is a small [configuration](../configuration.md).

| page | content |
|---|---|
"""
#: subject of a module -> heading
HEADINGS = {
    "Conv": "Convolutions",
    "Conv layers": "Convolution layers",
    "Ctc": "CTC loss",
    "Classes": "Tensors and classes",
    "Dlpack": "DLPack",
    "Pool": "Pooling",
    "Pool layers": "Pooling layers",
    "Norm": "Normalization",
    "Norm layers": "Normalization layers",
    "Synchronized norm": "Normalization layers",
    "Shared names": "Jobs and tensors alike",
    "Moment optimizers": "Optimizers",
    "Matrix optimizers": "Optimizers",
    "Quasi newton": "Optimizers",
    "Optimizer": "Optimizers",
    "Table optimizers": "Optimizers",
    "Torch collectives": "Process groups and collectives",
    "Process groups": "Process groups and collectives",
    "Group arguments": "Process groups and collectives",
    "Record codecs": "Records",
    "Record data": "Records",
    "Declare": "Jobs",
    "Job config": "Jobs",
    "Loss": "Losses",
    "Mnist": "Ready data",
}
#: headings that come first on their pages
FIRST_GROUPS = (
    *("Jobs", "Variables", "Tensors and classes", "Creation", "Optimizers", "Graph", "Placements", "Global tensors", "`flow.trainer`", "Saving"),
    *("Module", "Container", "Linear layers", "Convolution layers", "Normalization layers", "Activation layers", "Loss layers", "Embedding layers"),
    *("Linear", "Convolutions", "Activations", "Losses", "Normalization", "`flow.utils.data`", "Readers", "`flow.layers`", "`flow.optimizer`"),
)
#: names that come first under their headings
FIRST_NAMES = (
    "Tensor",
    "tensor",
    "Module",
    "Linear",
    "Conv2d",
    "SGD",
    "Adam",
    "AdamW",
    "CrossEntropyLoss",
    "global_function",
    "placement",
    "sbp",
    "train",
    "DataLoader",
)
#: of the interface for job functions
COMPATIBILITY = (
    "[Compatibility](../compatibility.md) lists what each name of OneFlow 0.2 to 0.4 supports; [Job functions](../job_functions.md) is the guide."
)


def pages() -> dict[str, str]:
    """Return the Markdown of each page, by its path in docs/."""
    listed: dict[str, list[Name]] = {page: [] for page in PAGES}
    for name in names().values():
        if not is_member(name):
            listed[page_of(name.path)].append(name)
    contents = {f"reference/{page}.md": page_text(page, listed[page]) for page in PAGES}
    rows = "".join(f"| [{title}]({page}.md) | {text} |\n" for page, (title, text) in PAGES.items())
    return {"reference/index.md": INTRODUCTION + rows, **contents}


def page_text(page: str, listed: list[Name]) -> str:
    title, text = PAGES[page]
    boost = "---\nsearch: {boost: 0.5}\n---\n\n" if page.startswith("job") else ""
    parts = [f"{boost}# {title}\n\n{text}\n"]
    if page.startswith("job"):
        parts.append(COMPATIBILITY + "\n")
    same = {name.path: first_path(name) for name in listed}
    groups: dict[str, list[Name]] = {group: [] for group in FIRST_GROUPS}
    for name in listed:
        if same[name.path] == name.path and not name.is_module:
            groups.setdefault(group_of(name), []).append(name)
    for group, inside in groups.items():
        if inside:
            parts += [f"## {group}\n", *entries(inside)]
    parts += other_names({path: other for path, other in same.items() if path != other})
    parts += modules([name for name in listed if name.is_module])
    return "\n".join(parts)


_FIRST: dict[int, str] = {}


def first_path(name: Name) -> str:
    """Return the public path under which an object is described: the first one of the object, without jobflow.functional."""
    if name.alias_of:
        return name.alias_of
    if not _FIRST:
        for other in sorted(names().values(), key=lambda other: (other.path.startswith("jobflow.functional."), other.path.count("."))):
            if not is_member(other) and documented(other) and not other.is_module:
                _FIRST.setdefault(id(value_of(other.path)), other.path)
    if name.path.startswith("jobflow.functional.") and (short := name.path.replace(".functional", "")) in names():
        return short
    return _FIRST.get(id(value_of(name.path)), name.path) if documented(name) else name.path


def group_of(name: Name) -> str:
    """Return the heading above an entry: the subject of the module that defines it, or the namespace."""
    module = module_of(name.path)
    if module == name.path or not module.startswith("jobflow.") or name.parent not in STUBS:
        return f"`{name.parent.replace('jobflow', 'flow', 1)}`" if name.parent else "Tensors of a job"
    subject = module.rpartition(".")[2].removeprefix("nn_").removesuffix("_functions").replace("_", " ").capitalize()
    return HEADINGS.get(subject, subject)


def entries(listed: list[Name]) -> list[str]:
    """Return entries of documented names, and a table of the others."""
    described = [name for name in listed if documented(name) and not set(name.path) & set("<([")]
    parts = []
    for name in sorted(described, key=lambda name: FIRST_NAMES.index(name.word) if name.word in FIRST_NAMES else len(FIRST_NAMES)):
        parts.append(f"::: {name.path}\n")
        if has_table(name):
            parts.append(table(sorted(members(name), key=lambda member: member.word.startswith("__")), call))
    rest = [name for name in listed if name not in described]
    if rest:
        parts.append(table([each for name in rest for each in (name, *members(name))]))
    return parts


def table(listed: list[Name], text: Callable[[Name], str] | None = None) -> str:
    rows = [f'| <a id="{name.anchor}"></a>`{(text or shown)(name)}` | {brief(name) or name.remark.removeprefix("= ")} |' for name in listed]
    return "\n".join(["| name | |", "|---|---|", *rows, ""])


def shown(name: Name) -> str:
    return (name.parent + "." + call(name)).replace("jobflow.", "flow.", 1).replace("|", "\\|").lstrip(".")


def other_names(same: dict[str, str]) -> list[str]:
    """Return the table of further names of objects that are described elsewhere."""
    if not same:
        return []
    rows = [f'| <a id="{path}"></a>`{path.replace("jobflow.", "flow.", 1)}` | {link(other)} |' for path, other in same.items()]
    return ["## Further names\n", "| name | described as |", "|---|---|", *rows, ""]


def link(path: str) -> str:
    """Return a link to the entry of a public name, or its text if it is an object of another package."""
    text = f"`{path.replace('jobflow.', 'flow.', 1)}`"
    return f"[{text}]({page_of(path)}.md#{path})" if path in names() else text


def modules(listed: list[Name]) -> list[str]:
    """Return the table of modules that can be imported."""
    if not listed:
        return []
    return ["## Namespaces\n", "| module | |", "|---|---|", *(f'| <a id="{name.anchor}"></a>`{name.path}` | {brief(name)} |' for name in listed), ""]
