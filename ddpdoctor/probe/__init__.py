"""`python -m ddpdoctor.probe`: one supervisor per rank (standard library only) and one worker that imports torch."""
