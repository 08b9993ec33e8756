"""The page that says what one training, or several, did: made from the JSON lines that `TrainingReport` writes."""
