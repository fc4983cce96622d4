"""What helper processes of every kind have in common; runs in each of them.

    process.py   a helper's name and priority
    health.py    how helpers know of each other and of themselves that they do their work
    orphans.py   shared memory that killed ones have left

Imports nothing of mpkv but `mpkv.messages`.
"""
