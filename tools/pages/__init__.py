"""Pages for people: self-contained HTML, and plots."""
