"""Tools that inspect jobs: explain, verify, and HTML pages."""

#: the stages that `jobflow explain` prints, in order of compilation
STAGES = ("trace", "graph", "layouts", "boxing", "physical", "program", "plan", "kernels", "memory", "floors", "pipeline")
