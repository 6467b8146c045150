"""What `jobflow doctor` looks at: each check gives findings; whatever may hang or crash happens in a child process with a time limit."""
