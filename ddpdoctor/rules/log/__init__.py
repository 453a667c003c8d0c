"""Rules about logs: what only they show (LOG), and how causes of every area read in them."""
