"""`flow.compile`: functions and modules traced once and replayed as plans."""
