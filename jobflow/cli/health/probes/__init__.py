"""Programs that `jobflow doctor` runs as child processes, by their files; each prints one line of JSON."""
