"""Looking at jobs: explain, compare devices, draw."""
