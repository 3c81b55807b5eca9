"""What does one operation consume? FLOP, bytes and launches as plain functions of shapes and types."""
