"""What a course does with a framework, as programs: run on a slice and on the CPU, their numbers are compared."""
