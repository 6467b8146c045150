"""The host pipeline of a job: stages that process samples and values on the host, ahead of its runs."""
