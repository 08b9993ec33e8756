"""A seeded differential tester: it draws programs and compares replicas, one device and plain Keras.

    a seed -> draw.py: a case (case.py, rules.py) -> run.py: a program (parts/) and its numbers -> check.py -> shrink.py

A case is a plain specification that is printed and run again; `python -m tests.fuzz --help` says how.
"""
