"""Execution of programs for OneFlow 0.2 to 0.4 without changes.

    python -m jobflow.compat script.py arguments ...
    mpiexec -n 2 python -m jobflow.compat -m package.module arguments ...

While such a program runs, `import oneflow` and its submodules resolve to jobflow (`import_forms.py`).  Names that NumPy removed are available,
and results with one element convert to numbers (`numpy_names.py`).  Names that Python and Pillow removed are available, too
(`library_names.py`).  Other programs are not affected.
"""
