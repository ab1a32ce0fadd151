"""What the questions share: their options and outputs, the rounds, the contenders, the record."""
