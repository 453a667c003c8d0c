"""`python -m ddpdoctor` is the command line."""

from ddpdoctor.system.selfexec import leave_folder

if __name__ == "__main__":
    leave_folder()
    from ddpdoctor.cli import main

    main()
