"""What did the run do? Recorders, readers, the timeline, steps and the demand of each operation that ran."""
