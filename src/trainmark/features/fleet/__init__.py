"""Is every node as good as its fellows: one judgement over runs of one plan, each on a host by itself."""

NEEDS = ("verify",)
