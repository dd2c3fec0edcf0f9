"""What tests of programs that use dlspark can run: a cluster in the process, and the real Java software."""
