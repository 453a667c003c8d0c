"""`python -m ddpdoctor` is the command line."""

from ddpdoctor.own import leave_folder

if __name__ == "__main__":
    leave_folder()
    from ddpdoctor.cli import main

    main()
