"""Reading with Spark, batch and streaming: where logs begin and end, plans for tasks, and the tasks."""
