"""How an option is declared, and what follows from a declaration: parser, sources, checks."""
