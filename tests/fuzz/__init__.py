"""A hostile corpus by seed: what a stranger may have put into the files that the commands read.

    corpus.py   good files, each kind with the commands that read it
    damage.py   what is done to them: values, lines, bytes, archives, records, whole files
    server.py   a process that has imported a package once and runs each command in a fork of itself
    sandbox.py  a case: copy the good files, damage some, run a command, look at what it did
    __main__.py many cases in several processes, and a table of how they ended

One property is checked, of every case: the command ends with 0, 1 or 2 in time and without a traceback, says at most
three lines on stderr, and changes nothing but its own output.
"""
