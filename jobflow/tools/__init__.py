"""Tools for inspecting jobs: explain, verify, and pages."""
