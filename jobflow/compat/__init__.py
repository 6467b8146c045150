"""Execution of programs for OneFlow 0.2 to 0.4 without changes.

    python -m jobflow.compat script.py arguments ...
    mpiexec -n 2 python -m jobflow.compat -m package.module arguments ...

While such a program runs, `import oneflow` and its submodules resolve to jobflow (`import_forms.py`).  The names that NumPy removed are restored,
and results with one element convert to numbers (`numpy_names.py`).  So are names of Python and Pillow (`library_names.py`).  Other programs are
not affected.
"""
