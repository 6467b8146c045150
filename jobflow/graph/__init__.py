"""The logical program: values, nodes and graphs, their text form, and graph rewriting."""
