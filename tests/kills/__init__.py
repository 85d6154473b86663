"""Kill tests: conversions whose processes are killed (SIGKILL) at moments spread over the whole run.

    places.py    where a conversion runs: local files, a bucket of a server on this machine, Prism with a worker process
    moment.py    one moment: start, kill, look at what stands there, run the same command again, compare
    site/        sitecustomize.py counts what each process of a conversion does, and kills at the n-th time
    __main__.py  many moments, and a line of how they ended

Half of the moments replace a dataset that stands (`--overwrite`). After each kill the old dataset stands or the new
one, or there is none yet; after the same command has run again, every file is that of an undisturbed conversion.
"""
