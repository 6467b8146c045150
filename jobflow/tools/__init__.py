"""Tools for inspecting jobs: explain, verify, and pages."""

#: what `jobflow explain` can print, in the order of a job's life
STAGES = ("trace", "graph", "layouts", "boxing", "physical", "program", "plan", "kernels", "memory", "pipeline")
