"""What this machine is, read without root: its GPUs in a child with a deadline, its host from the kernel."""
