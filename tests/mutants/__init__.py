"""Mutation tests: whether the tests notice when the arithmetic is changed.

    targets.py    which functions are changed, and which tests have to fail then
    mutation.py   a mutant is a module's source with one operator or number changed; cosmic-ray's operators make it
    trial.py      runs the tests on a mutant, in a fork of a process that has imported TensorFlow and Beam already
    __main__.py   all mutants, and a table of how many were killed, that is, made a test fail

No file is changed: a fork imports the changed source in place of the file's.
"""
