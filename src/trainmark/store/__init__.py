"""What runs leave: their folders made into records, and the records kept and indexed."""
