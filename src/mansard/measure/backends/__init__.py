"""What the installed frameworks reach: matrix products, special functions and the cost of one dispatch."""
