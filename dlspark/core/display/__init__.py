"""Views in notebooks: of namespaces, logs, positions and records, and `tail`. IPython is used where it runs already.

Whatever comes from outside, payloads and names above all, is escaped (`dlspark.core.markup`). What is drawn is bounded.
Nothing here asks the metadata store by itself, except `overview`, for which there is a limit of time.
"""
