"""CPU and GPU devices."""
