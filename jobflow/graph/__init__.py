"""The logical program: values, nodes and graphs, their text, and how they are rewritten."""
