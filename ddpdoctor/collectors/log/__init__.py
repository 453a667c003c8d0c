"""`log`: reads what the ranks, launchers and schedulers printed, whatever it is packed in, however large it is."""
