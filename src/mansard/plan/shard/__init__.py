"""How to divide a model over many devices: every plan of a space, vectorised, memory first."""
