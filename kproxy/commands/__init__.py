"""The commands of `kproxy`, a module each.

A command is a module here and an entry of `parser.COMMANDS`. The module has two functions::

    add_options(parser)     what may be typed behind the command, and what its help says
    run(options) ─▶ int     do it, return the exit code

`cli` imports the module of the command that was typed, and no other. The module itself imports
what is large within `run`, so that help and mistakes cost no more than they must.
"""
