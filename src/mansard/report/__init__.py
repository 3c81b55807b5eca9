"""How do people see it? Terminal, HTML, exports."""
