"""`python -m dlspark.core.sync`: write anew what the synchronous classes take over from the asynchronous ones."""

from dlspark.core.sync.generation import write_all

if __name__ == "__main__":
    write_all()
