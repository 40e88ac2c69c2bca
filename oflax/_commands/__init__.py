"""The commands of ``oflax``, a function each.

Each imports what it needs when it is called, so that --help is quick.
"""
