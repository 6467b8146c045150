"""Text generation: caches of keys and values, rotary positions, sampling, and the loop over tokens."""
