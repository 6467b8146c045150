"""What `jobflow explain` can show of a job."""

#: in the order of a job's life
STAGES = ("trace", "graph", "layouts", "boxing", "physical", "program", "plan", "memory", "pipeline")
