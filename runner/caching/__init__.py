"""The result cache: answers that a later run need not compute again."""
