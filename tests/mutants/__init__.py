"""Mutation tests: changes of the product that some test must notice (`make mutants`)."""
