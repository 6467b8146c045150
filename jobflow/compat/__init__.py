"""Programs written for OneFlow 0.2 to 0.4, run without changes.

    python -m jobflow.compat script.py arguments ...
    mpiexec -n 2 python -m jobflow.compat -m package.module arguments ...

While such a program runs, `import oneflow` and its submodules resolve to jobflow (`import_forms.py`).  NumPy has its removed names again, and
results with one element convert to numbers (`numpy_names.py`).  Python and Pillow have their removed names (`library_names.py`).  Other programs
are not affected.
"""
