"""The commands of `kproxy`, a module each.

A command is a module here and an entry of `parser.COMMANDS`. The module has two functions::

    add_options(parser)     add the arguments of the command, and its help
    run(options) ─▶ int     run the command, return the exit code

`cli` imports only the module of the command that was typed. The module imports large modules within
`run`, so that help and usage errors are quick.
"""
