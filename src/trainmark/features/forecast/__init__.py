"""What a training would do at sizes that were not run: speed, time, energy and money, each with an interval."""
