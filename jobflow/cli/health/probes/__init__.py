"""Programs that `jobflow doctor` runs as child processes by file name; each prints one JSON line."""
