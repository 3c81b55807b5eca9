"""The sections of the page beyond one run: each turns one kind of result into charts, tables and prose."""
