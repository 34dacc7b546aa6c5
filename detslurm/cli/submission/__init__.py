"""Commands that submit experiments, or show what a submission would be."""
