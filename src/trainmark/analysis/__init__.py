"""From records to judgements: compare, scaling, audit of our own records. Works on a laptop without torch."""
