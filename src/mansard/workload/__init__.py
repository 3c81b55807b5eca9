"""What must this work consume? Models from a configuration, phases, caches, parallel plans, memory."""
