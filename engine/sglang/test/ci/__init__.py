"""How test files say in which continuous-integration suite they run."""
