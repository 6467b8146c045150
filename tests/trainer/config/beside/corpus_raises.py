"""Cannot be imported: it raises."""

raise RuntimeError("no such data")
