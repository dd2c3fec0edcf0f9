"""A load like OpenMessaging's benchmark, the same for every system: what is due, how long it took, what was lost."""
