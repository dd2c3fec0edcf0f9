"""Shared by every floor, below all of them: it imports no other package of the project.

errors         the tree of errors: whether the thing happened
settings       what a setting is: key, type, bounds, unit; how its value is read, and its page is made
tasks          the end of tasks, and work that is done once
pacing         limits: of what runs at a time, of requests or bytes a second
properties     properties files, as Java writes them
processes      children that end with this process, and processes that are not its children
descriptors    how many file descriptors this process may have
private_files  files and directories for their owner alone
fault_points   named lines at which a test makes a process hang, die or fail
plurals        numbers with the things that they count
"""
