"""`python -m ddpdoctor` is the command line."""

from ddpdoctor.cli import main

if __name__ == "__main__":
    main()
