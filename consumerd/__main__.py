"""`python -m consumerd` is `consumerd`."""

from consumerd.cli.main import main

if __name__ == "__main__":
    main()
