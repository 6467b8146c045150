"""Running plans: devices, communicators, worlds, state and the executor."""
