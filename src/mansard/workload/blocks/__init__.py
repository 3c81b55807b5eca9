"""The blocks of a model: what each stores, and the dimensions its cost depends on."""
