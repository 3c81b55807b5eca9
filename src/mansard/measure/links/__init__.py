"""What the benchmarks of collectives and transfers are made of: meshes, shapes, references, processes, pointers."""
