"""What does the machine really do? Microbenchmarks, their timing and their audit."""
