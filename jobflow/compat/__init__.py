"""Programs that were written for OneFlow 0.2 to 0.4, run as they are.

    python -m jobflow.compat script.py arguments ...
    mpiexec -n 2 python -m jobflow.compat -m package.module arguments ...

While such a program runs, `import oneflow` and its submodules find what jobflow has under these names (`import_forms.py`), and NumPy has the
names again that it dropped and takes results with one element for numbers (`numpy_names.py`), and Python and Pillow have theirs
(`library_names.py`).  None of it is so in other programs.
"""
